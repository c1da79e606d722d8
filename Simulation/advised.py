"""Asks the advisor, in a process of its own, and keeps what it says; what is there is not asked."""

import json
import subprocess
import sys

import advise_folders
import advise_measure
import experiments


class Advisor:
    """Answers of the advisor, and the costs that it takes, in files of a directory."""

    def __init__(self, place, say):
        """Takes a path, the directory; and a function of a string that tells what is done."""
        self.place, self._say = place, say

    def folder(self, model, flags):
        """Returns the `advise_folders.Folder` of a model: a name, and its list of flags."""
        return advise_folders.Folder('HogWild', flags, self.place / 'folders' / model)

    def costs(self, model, flags):
        """Returns the path of the costs of a model, which are measured once; see `folder`."""
        path = self.place / f'costs-{model}.json'
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            advise_measure.measure(self.folder(model, flags), self._say).write(path)
        return path

    def answer(self, model, flags, target, cluster, cluster_name, minutes):
        """Returns the advisor's answer, a dict, as its answer.json has it.

        Args:
          model: string, its name.
          flags: list of strings, its flags.
          target: float, the test accuracy to reach.
          cluster: string, as the advisor takes it.
          cluster_name: string.
          minutes: float, for the search.

        Raises:
          SystemExit: if it has no answer.
        """
        directory = self.place / f'{model}-{cluster_name.replace(" ", "-")}-{minutes:g}'
        path = directory / 'answer.json'
        if not path.exists():
            done = subprocess.run(
                [sys.executable, str(experiments.HERE / 'advise.py'), f'--minutes={minutes:g}',
                 f'--cluster={cluster}', f'--costs={self.costs(model, flags)}',
                 f'--target={target}', f'--results_dir={directory}', '--', *flags],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                check=False)
            if done.returncode:
                sys.exit(f'{model}/{cluster_name}: '
                         f'{(done.stdout.splitlines() or ["no answer"])[-1]}')
        return json.loads(path.read_text(encoding='utf-8'))
