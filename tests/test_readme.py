"""The READMEs hold: their links and flags are there, and the model in them trains."""

import re
import shutil

from conftest import ROOT
from processes import DID, TEST
import pytest

CLUSTERS = sorted(ROOT.glob('Clusters/*/README.md'))
READMES = sorted([ROOT / 'README.md', *ROOT.glob('[!.]*/README.md'), *CLUSTERS])
# Flags of other programs that are named in the text: of TensorBoard, Chromium, Slurm and Spark.
OTHERS = {'help', 'logdir', 'headless', 'no-sandbox', 'disable-gpu', 'window-size',
          'virtual-time-budget', 'screenshot', 'ntasks', 'nodes', 'ntasks-per-node',
          'cpus-per-task', 'time', 'partition', 'exclusive', 'conf'}
# What each folder says whose programs open ports, at the end of the section Run.
WHO_CAN_REACH = (
    'listens on all networks of this machine and asks for no password: whoever connects can do '
    'what your account can do. With `LOCAL_ONLY=1 bash run.sh` nobody else can connect: see [who '
    'can reach a run](')


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
    is_example = (readme.parent / 'model.py').exists()
    folders = [readme.parent.name] if is_example else ['[!.]*', 'Clusters/*']
    code = ''.join(path.read_text(encoding='utf-8')
                   for folder in [*folders, 'tests'] for path in ROOT.glob(f'{folder}/*.py'))
    known = set(re.findall(r"(?:DEFINE_\w+\(\s*'|add_argument\('--)([\w-]+)'", code))
    named = set(re.findall(r'(?<![\w-])--(?:no(?=use_))?([a-z][\w-]*)', text_of(readme)))
    assert named - known - OTHERS == set()
    if readme.parent == ROOT or (readme.parent / 'run.sh').exists():  # notebooks have no flags
        assert len(named & known) > 3


def opens_ports(folder):
    """Returns whether a folder's programs or notebooks start servers."""
    return any('.train.Server(' in path.read_text(encoding='utf-8')
               for kind in ('py', 'ipynb') for path in folder.glob(f'*.{kind}'))


def test_who_can_reach_a_run():
    """Every README of what opens a port says it, or leads to where it is said."""
    readmes = [path for path in READMES if path.parent != ROOT and opens_ports(path.parent)]
    assert len(readmes) > 2
    for readme in [*readmes, *CLUSTERS]:
        text = text_of(readme)
        assert re.search(r'\]\([\w./-]*#who-can-reach-a-run\)', text), readme
        if (readme.parent / 'run.sh').exists():
            run, = re.findall(r'^## Run\n(.*?)^## ', text, re.DOTALL | re.MULTILINE)
            assert WHO_CAN_REACH in ' '.join(run.split()), readme
    for name in 'README.md', 'Distributed-Setup/README.md':
        assert '\n## Who can reach a run\n' in text_of(ROOT / name), 'where the links lead to'


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
