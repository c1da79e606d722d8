"""The READMEs hold: their links and flags are there, and the model in them trains."""

import re
import shutil

from conftest import ROOT
from processes import DID, TEST
import pytest

READMES = sorted([ROOT / 'README.md', *ROOT.glob('[!.]*/README.md')])
# Flags of other programs that are named in the text.
OTHERS = {'help', 'logdir', 'map-root-user', 'net', 'user'}


def text_of(readme):
    return readme.read_text(encoding='utf-8')


@pytest.mark.parametrize('readme', READMES, ids=lambda path: path.parent.name)
def test_links(readme):
    """Those within the repository."""
    for target in re.findall(r'\]\(([^)#]+)[^)]*\)', text_of(readme)):
        if '://' not in target:
            assert (readme.parent / target).exists(), target


@pytest.mark.parametrize('readme', READMES, ids=lambda path: path.parent.name)
def test_flags(readme):
    """Each flag in the text is a flag of a program."""
    folders = '[!.]*' if readme.parent == ROOT else readme.parent.name
    code = ''.join(path.read_text(encoding='utf-8')
                   for folder in (folders, 'tests') for path in ROOT.glob(f'{folder}/*.py'))
    known = set(re.findall(r"(?:DEFINE_\w+\(\s*'|add_argument\('--)([\w-]+)'", code))
    named = set(re.findall(r'(?<![\w-])--(?:no(?=use_))?([a-z][\w-]*)', text_of(readme)))
    assert named - known - OTHERS == set()
    if readme.parent == ROOT or (readme.parent / 'run.sh').exists():  # notebooks have no flags
        assert len(named & known) > 3


def test_the_model_of_another_problem(programs, tmp_path):
    """It is put into a copied folder, as the text says."""
    model, = re.findall(r'```python\n(.*?)```', text_of(ROOT / 'README.md'), re.DOTALL)
    project = tmp_path / 'my-project'
    shutil.copytree(str(ROOT / 'HogWild'), str(project),
                    ignore=shutil.ignore_patterns('__pycache__'))
    (project / 'model.py').write_text(model, encoding='utf-8')
    run = programs.run_sh(project, '--train_steps=1000')
    run.ends_well()
    assert len(run.matches(DID)) == 2
    assert float(run.wait_for(TEST)['accuracy']) > 0.9
