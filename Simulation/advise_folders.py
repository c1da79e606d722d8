"""The user's model, and the folder of each scheme with it, to be simulated and to be run."""

import hashlib
import pathlib
import shutil
import sys

import schemes
import study_cases

ALONE = 'one process'
_TRAINS_ALONE = 'Non-Distributed-Setup'
SIMULATES_ALONE = 'HogWild'  # one worker that waits for nothing
# Its model.py has another interface, so that no other folder's is taken for it.
_OTHER_INTERFACE = ['Distributed-MNIST']


class Folder:
    """A model with its flags, and the schemes that may train it.

    Attributes:
      path: `pathlib.Path`, absolute, the folder that has the model.
      flags: list of strings, those that each program gets.
      names: list of strings, the schemes.
      own: string, the name of the scheme that the collection does not have; or None.
      identity: string, the same for the same folder, code and flags.
    """

    def __init__(self, name, flags, place):
        """Looks at the folder.

        Args:
          name: string, a folder of the collection, or the path of any other one.
          flags: list of strings.
          place: `pathlib.Path`, a directory where folders are made that join a scheme of the
            collection with the model.

        Raises:
          SystemExit: if there is no model.
        """
        folder = schemes.ROOT / name if (schemes.ROOT / name).is_dir() else pathlib.Path(name)
        self.path, self.flags, self._place = folder.resolve(), flags, place
        if not (self.path / 'model.py').is_file():
            sys.exit(f'--folder={name}: it has no model.py.' if folder.is_dir() else
                     f'--folder={name}: there is no such folder.')
        self.names = [each for each in schemes.folders()
                      if each not in study_cases.ALIKE and each not in _OTHER_INTERFACE]
        self._folders, self.own = {}, self._own_scheme()
        if self.own and self.own not in self.names:
            self.names.append(self.own)
        digest = hashlib.sha256('\0'.join(flags).encode())
        for path in sorted(self.path.glob('*.py')):
            digest.update(path.read_bytes())
        self.identity = f'{self.path.name} {digest.hexdigest()[:10]}'

    def _own_scheme(self):
        """Returns the name of the folder if it has a scheme that the collection does not have."""
        own = self.path / 'worker.py'
        if self.path.parent == schemes.ROOT or not own.is_file():
            return None
        text = own.read_text(encoding='utf-8')
        known = [path.read_text(encoding='utf-8') for path in schemes.ROOT.glob('*/worker.py')]
        return self.path.name if 'class Scheme(' in text and text not in known else None

    def why_not(self, name):
        """Returns why a folder of the collection is no candidate; None if it is none of them."""
        if not (schemes.ROOT / name / 'model.py').is_file():
            return None
        if name in study_cases.ALIKE:
            return f'it makes the updates of {study_cases.ALIKE[name]}'
        if name in _OTHER_INTERFACE:
            return 'its model.py has another interface'
        return schemes.why_left_out(name)

    def of(self, name):
        """Returns the path of the folder in which a scheme, or ALONE, trains the model."""
        if name not in self._folders:
            self._folders[name] = self._make(_TRAINS_ALONE if name == ALONE else name)
        return self._folders[name]

    def _make(self, name):
        scheme = schemes.ROOT / name
        if name == self.own:
            return self.path
        if (scheme / 'model.py').read_bytes() == (self.path / 'model.py').read_bytes():
            return scheme
        joined = self._place / name
        shutil.rmtree(str(joined), ignore_errors=True)
        joined.mkdir(parents=True)
        library = self._place / 'tfdist'
        if not library.exists():
            library.symlink_to(schemes.ROOT / 'tfdist')
        # Copies: Python looks for what a program imports where the program really lies.
        for path in [*scheme.glob('*.py'), *scheme.glob('*.sh')]:
            if path.name != 'model.py':
                shutil.copy(str(path), str(joined / path.name))
        for path in self.path.iterdir():
            if not (joined / path.name).exists():
                (joined / path.name).symlink_to(path)
        return joined
