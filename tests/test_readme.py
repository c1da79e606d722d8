"""The READMEs and pages hold: links, flags, programs in them, and what they say of errors."""

import collections
import itertools
import re
import shutil
import statistics
import types

import pytest

from tfdist.model import building, model_file
from tfdist.start.quiet import tf

from conftest import load_program
from processes import DID, examples, ROOT, TEST

PAGES = sorted(ROOT.glob('docs/*.md'))
CLUSTERS = sorted(ROOT.glob('Clusters/*/README.md'))
READMES = sorted([ROOT / 'README.md', *ROOT.glob('[!.]*/README.md'), *CLUSTERS, *PAGES])
# Flags of other programs that are named in the text: of TensorBoard, Chromium, Slurm and Spark.
OTHERS = {'help', 'logdir', 'headless', 'no-sandbox', 'disable-gpu', 'window-size',
          'virtual-time-budget', 'screenshot', 'ntasks', 'nodes', 'ntasks-per-node',
          'cpus-per-task', 'time', 'partition', 'exclusive', 'conf'}
# What each folder says whose programs open ports, at the end of the section Run.
WHO_CAN_REACH = (
    'listens on all networks of this machine and asks for no password: whoever connects can do '
    'what your account can do. With `LOCAL_ONLY=1 bash run.sh` nobody else can connect: see [who '
    'can reach a run](../docs/who-can-reach-a-run.md).')
PYTHON = re.compile(r'```python\n(.*?)```', re.DOTALL)
YOUR_OWN = ROOT / 'docs' / 'your-own-model.md'
LIBRARY_PAGE = ROOT / 'docs' / 'the-library.md'


def text_of(readme):
    return readme.read_text(encoding='utf-8')


def name_of(readme):
    return str(readme.relative_to(ROOT))


def anchors(readme):
    """Returns the set of anchors of a page, as GitHub makes them of its headings."""
    text = re.sub(r'```.*?```', '', text_of(readme), flags=re.DOTALL)
    headings = [re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-')
                for heading in re.findall(r'^#+ (.*)$', text, re.MULTILINE)]
    assert len(set(headings)) == len(headings), f'two of {readme} would be numbered'
    return set(headings)


@pytest.mark.parametrize('readme', sorted({*READMES, *ROOT.glob('[!.]*/**/*.md'),
                                           *ROOT.glob('*.md')}), ids=name_of)
def test_links(readme):
    """Those within the repository, and the headings that they lead to, in all that is written."""
    for target in re.findall(r'\]\(([^)]+)\)', text_of(readme)):
        if '://' in target:
            continue
        path, _, anchor = target.partition('#')
        path = readme.parent / path if path else readme
        assert path.exists(), target
        path = path / 'README.md' if path.is_dir() else path
        if anchor and path.suffix == '.md':
            assert anchor in anchors(path), target


@pytest.mark.parametrize('page', PAGES, ids=name_of)
def test_each_page_is_led_to(page):
    """From the front page, or from one that is."""
    pages, found = [ROOT / 'README.md'], {ROOT / 'README.md'}
    while pages:
        here = pages.pop()
        for target in re.findall(r'\]\((?!http)([^)#]+(?:\.md\b|/(?=[)#])))', text_of(here)):
            path = (here.parent / target).resolve()
            path = path / 'README.md' if path.is_dir() else path
            if path not in found and path.exists():
                found.add(path)
                pages.append(path)
    assert page in found


@pytest.mark.parametrize('readme', READMES, ids=name_of)
def test_flags(readme):
    """Each flag in the text is a flag of a program: in a folder of that folder, or of all."""
    is_example = (readme.parent / 'model.py').exists()
    places = ([f'{readme.parent.name}/*.py', 'tfdist/*/*.py', 'Comparison/measure.py',
               'Comparison/bench.py', 'Simulation/claims.py', 'Simulation/study.py',
               'Simulation/simulate.py']
              if is_example else ['[!.]*/*.py', 'tfdist/*/*.py', 'Clusters/*/*.py'])
    code = ''.join(text_of(path) for place in places for path in ROOT.glob(place))
    known = set(re.findall(r"(?:DEFINE_\w+\(\s*'|add_argument\('--)([\w-]+)'", code))
    named = set(re.findall(r'(?<![\w-])--(?:no(?=use_))?([a-z][\w-]*)', text_of(readme)))
    assert named - known - OTHERS == set()
    if (readme.parent / 'run.sh').exists():  # notebooks have no flags
        assert len(named & known) > 3


@pytest.mark.parametrize('readme', READMES, ids=name_of)
def test_names_of_the_code(readme):
    """Files that are named are there, and so is what is named of a module of the library."""
    spans = re.findall(r'`([^`\n]+)`', re.sub(r'```.*?```', '', text_of(readme), flags=re.DOTALL))
    named = {path for span in spans for path in re.findall(r'[\w./-]+\.(?:py|sh)\b', span)}
    # The page has the first one itself; the second one is of TensorFlow.
    for path in named - {'by_hand.py', 'cifar10_multi_gpu_train.py'}:
        places = {readme.parent, ROOT, *(model.parent for model in ROOT.glob('*/model.py')),
                  *(cluster.parent for cluster in CLUSTERS)}
        assert any((place / path).is_file() for place in places), path
    for span in spans:
        for module, name in re.findall(r'(?<![\w./])(\w+)\.(\w+)', span):
            for path in ROOT.glob(f'tfdist/*/{module}.py'):
                if name in ('py', 'json', 'yaml', 'npz'):
                    continue
                assert re.search(rf'^ *(?:def|class) {name}\b|^{name} =', text_of(path),
                                 re.MULTILINE), span


def prose(readme):
    """Returns the words of a page, but for code, tables, headings and what is folded."""
    text = re.sub(r'```.*?```|<details>.*?</details>', '', text_of(readme), flags=re.DOTALL)
    return ' '.join(line for line in text.splitlines()
                    if not line.startswith(('|', '    ', '#', '![', '<!--'))).split()


def test_the_front_page_is_short():
    assert len(text_of(ROOT / 'README.md').splitlines()) <= 150


@pytest.mark.parametrize('readme', sorted(
    path.parent / 'README.md' for path in ROOT.glob('*/model.py')), ids=name_of)
def test_a_folder_is_read_in_five_minutes(readme):
    assert len(prose(readme)) <= 1000


@pytest.mark.parametrize('page', [ROOT / 'README.md', ROOT / 'docs' / 'schemes.md'], ids=name_of)
def test_each_folder_is_on_the_map_and_in_the_table(page):
    missing = [folder for folder in examples() if f'[{folder}](' not in text_of(page)]
    assert not missing, f'add a line to {page.name} for each of them'


def opens_ports(folder):
    """Returns whether a folder's programs or notebooks start servers."""
    return any('.train.Server(' in text_of(path)
               for kind in ('py', 'ipynb') for path in folder.glob(f'*.{kind}'))


def test_who_can_reach_a_run():
    """Every README of what opens a port says it, or leads to where it is said."""
    readmes = [path for path in ROOT.glob('[!.]*/README.md') if opens_ports(path.parent)]
    assert len(readmes) > 20
    for readme in [*readmes, *CLUSTERS, ROOT / 'README.md']:
        text = text_of(readme)
        assert re.search(r'\]\([\w./-]*docs/who-can-reach-a-run\.md\)', text), readme
        if (readme.parent / 'run.sh').exists():
            run, = re.findall(r'^## Run\n(.*?)^## ', text, re.DOTALL | re.MULTILINE)
            assert WHO_CAN_REACH in ' '.join(run.split()), readme


def test_what_is_said_in_many_places_is_said_once():
    """No long paragraph is in more than three READMEs, but for the warning of open ports."""
    where = collections.defaultdict(set)
    for readme in READMES:
        for paragraph in re.split(r'\n\s*\n', text_of(readme)):
            where[' '.join(paragraph.split())].add(name_of(readme))
    assert len(where) > 1000
    assert not {paragraph: names for paragraph, names in where.items()
                if len(paragraph) > 200 and len(names) > 3 and WHO_CAN_REACH not in paragraph}


def copied(folder, project):
    """Copies a folder and the library into a project; returns the path of the folder there."""
    for name in folder, 'tfdist':
        shutil.copytree(str(ROOT / name), str(project / name),
                        ignore=shutil.ignore_patterns('*.pyc.*'))
    return project / folder


def model_from(source):
    """Returns a model.py as a module."""
    module = types.ModuleType('model')
    exec(source, module.__dict__)
    return module


def sources():
    """Returns the sources of two model.py: the one of the page, and the one with its own input."""
    whole, other = PYTHON.findall(text_of(YOUR_OWN))
    begin, end = whole.index('def train_batches'), whole.index('def test_batches')
    return whole, whole[:begin] + other + '\n\n' + whole[end:]


@pytest.mark.thorough
@pytest.mark.parametrize('source', sources(), ids=['arrays', 'dataset'])
def test_the_model_of_another_problem(programs, tmp_path, source):
    """It is put into a copied folder, as the text says."""
    folder = copied('HogWild', tmp_path / 'my-project')
    (folder / 'model.py').write_text(source, encoding='utf-8')
    run = programs.run_sh(folder, '--train_steps=3000')
    run.ends_well()
    assert len(run.matches(DID)) == 2
    assert float(run.wait_for(TEST)['accuracy']) > 0.9


@pytest.mark.parametrize('source', sources(), ids=['arrays', 'dataset'])
def test_its_batches_come_in_the_same_order_again(source):
    """However many a run takes; and each worker has others."""
    def read(runs, *arguments):
        with tf.Graph().as_default(), tf.Session() as session:
            batches = model_from(source).train_batches(10, *arguments)
            session.run(tf.tables_initializer())
            return [points.tolist() for _ in range(runs)
                    for points, _ in session.run(batches)]

    assert read(3, 8, 1, 2) == read(3, 8, 1, 2) == read(24, 1, 1, 2)
    orders = [read(1, 8, shard, 2, seed) for shard, seed in itertools.product((0, 1), (0, 1))]
    assert all(one != other for one, other in itertools.combinations(orders, 2))


def test_the_same_model_in_one_process_says_the_same_again(programs, tmp_path):
    folder = copied('Non-Distributed-Setup', tmp_path)
    (folder / 'model.py').write_text(sources()[0], encoding='utf-8')
    runs = [programs.run_sh(folder, '--train_steps=300', '--log_every_n_steps=100')
            for _ in range(2)]
    said = []
    for run in runs:
        run.ends_well()
        said.append([re.sub(r'[\d.]+ (steps/s|s)$', r'\1', line) for line in run.out])
    assert said[0] == said[1] and len(said[0]) == 6


def mistakes():
    """Returns what the page says of mistakes, and for each a change of its model.py that is one."""
    table = text_of(YOUR_OWN).split('## When it does not work')[1]
    said = [line.split(' | ')[0].lstrip('| ') for line in table.splitlines()
            if line.startswith('| `')]
    units = '    units = tf.layers.dense'
    function = 'def loss_and_metrics(batch, training):\n'
    keeps = 'def loss_and_metrics(batch, training, layer=tf.keras.layers.Dense(2)):\n'
    changes = [
        (units, '    tf.get_variable("n", [], tf.int32, tf.zeros_initializer())\n' + units),
        (units, '    tf.get_variable("left_out", [])\n' + units),
        (units, '    loss_and_metrics.calls = getattr(loss_and_metrics, "calls", 0) + 1\n'
         '    tf.get_variable(f"n{loss_and_metrics.calls}", [], trainable=False)\n' + units),
        (function, keeps + '    batch = layer(batch[0]), batch[1]\n'),
        (function, 'tf.get_variable("early", [])\n\n\n' + function),
        (units, '    return tf.reduce_mean(points), {}\n' + units),
        ('num_shards, seed)\n', 'num_shards, seed)[1:]\n'),
        ("    if training:\n        return loss, {'accuracy': accuracy}",
         '    if training:\n        return loss'),
    ]
    assert len(said) == len(changes)
    return list(zip(said, changes))


@pytest.mark.parametrize('said, change', mistakes(), ids=lambda value: str(value)[:20])
def test_what_is_said_of_a_model_with_a_mistake(said, change):
    """In each row of the table the first cell is what is seen, with `...` for what varies."""
    source = sources()[0]
    assert change[0] in source
    worker = load_program('AGN')
    hparams = types.SimpleNamespace(learning_rate=0.1, communication_window=2)
    words, = re.findall('^`(.*?)`', said)
    complaints = SystemExit, ValueError, TypeError, StopIteration
    with pytest.raises(complaints) as raised, tf.Graph().as_default():
        model = model_from(change[1].join(source.rsplit(change[0], 1)))
        global_step = tf.train.get_or_create_global_step()
        network = building.Network(model_file.Model(model), model.train_batches(10, 2))
        worker.Scheme(network, global_step, hparams, 0, 1)
    form = '.*'.join(map(re.escape, words.split('...')))
    assert re.search(form, f'{raised.type.__name__}: {raised.value}', re.IGNORECASE)


def test_a_scheme_driven_by_hand(programs, tmp_path):
    """The program of the page, in the folder that it names and in another, prints what it says."""
    text = text_of(LIBRARY_PAGE)
    program, = PYTHON.findall(text)
    outputs = re.findall(r'```\n(pushed .*?)```', text, re.DOTALL)
    others = program.replace('use_locking=False', 'communication_window=2')
    assert others != program
    for folder, source, output in zip(('HogWild', 'AGN'), (program, others), outputs):
        place = copied(folder, tmp_path / folder)
        (place / 'by_hand.py').write_text(source, encoding='utf-8')
        run = programs.task('by_hand', folder=place)
        assert run.wait() == 0 and run.out == output.splitlines(), str(run)
    assert len(outputs) == 2


@pytest.mark.skipif(not tf.__version__.startswith('1.'), reason='tables are of TensorFlow 1.15')
def test_a_row_comes_out_as_it_is_written(programs):
    """One process is deterministic by its seed, up to an image of the 297 on another machine."""
    flags = '--train_steps=500', '--batch_size=64', '--learning_rate=0.5'
    row, = re.findall(rf'^\| Non-Distributed-Setup \|[^|]*\| `{" ".join(flags)}` \|.*$', text_of(
        ROOT / 'Synchronous-SGD-different-learning-rates' / 'README.md'), re.MULTILINE)
    written, spread = map(float, re.search(r'(0\.\d+) ± (0\.\d+)', row).groups())
    runs = [programs.run_sh('Non-Distributed-Setup', *flags, f'--seed={seed}') for seed in (1, 2)]
    accuracies = [float(run.wait_for(TEST)['accuracy']) for run in runs]
    assert [run.wait() for run in runs] == [0, 0]
    assert statistics.mean(accuracies) == pytest.approx(written, abs=1 / 297)
    assert statistics.stdev(accuracies) == pytest.approx(spread, abs=1 / 297)
