"""The page on models that exist already: each model.py on it trains, and prints what it says."""

import ast
import re
import shutil

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.checking import check, counterpart
from tfdist.model import building, starts
from tfdist.training import evaluation

from conftest import load_program, ROOT
from processes import TEST, warm_python

PAGE = (ROOT / 'docs' / 'bring-your-model.md').read_text(encoding='utf-8')
FILES = ['tumors', 'tumors_model', 'model_fn', 'estimator', 'functional', 'sequential', 'weights',
         'foreign', 'imports', 'fine_tuning', 'state', 'generator', 'records', 'tfrecords',
         'recipe', 'hooks']
BLOCKS = re.findall(r'```python\n(.*?)```', PAGE, re.DOTALL)
SOURCES = dict(zip(FILES, BLOCKS))
MODELS = [name for name in FILES if 'def loss_and_metrics' in SOURCES.get(name, '')]
BESIDE = {'estimator': 'model_fn', 'imports': 'foreign'}  # the file that a model imports
# Of the others there is another brief test below, or one of their kind in test_idioms.py.
BRIEF = {('imports', 'HogWild'), ('state', 'HogWild'), ('generator', 'HogWild'),
         ('tfrecords', 'HogWild'), ('recipe', 'DOWNPOUR-Easy')}
WINDOW, STEPS = 2, 4


def test_the_page_has_these_files():
    """Each has its kind of content, so that no other one is taken for it."""
    assert len(BLOCKS) == len(FILES)
    assert len(MODELS) == 11
    for name, word in [('tumors', 'tf.Session()'), ('model_fn', 'def model_fn'),
                       ('weights', 'save_weights'), ('foreign', 'flags.DEFINE'),
                       ('records', 'TFRecordWriter'), ('estimator', 'import model_fn'),
                       ('imports', 'import foreign'), ('fine_tuning', 'of_checkpoint'),
                       ('sequential', 'of_keras'), ('recipe', 'RECIPE')]:
        assert word in SOURCES[name], name


def changed(source, *pairs):
    """Returns a source with replacements, pairs of strings, each of which it has once."""
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that puts a model of the page into a copy of a folder, and goes there.

    Args (of the function):
      folder: string.
      name: string, of the model.
      *pairs: replacements in its source.
    """
    def make(folder, name, *pairs):
        copy = tmp_path / folder
        copy.mkdir()
        for path in (ROOT / folder).glob('*.*'):
            shutil.copy(str(path), str(copy))
        (copy / 'model.py').write_text(changed(SOURCES[name], *pairs), encoding='utf-8')
        beside = BESIDE.get(name)
        if beside:
            (copy / f'{beside}.py').write_text(SOURCES[beside], encoding='utf-8')
        monkeypatch.chdir(str(copy))
        return copy

    return make


def make_weights(copy):
    """Makes what weights.py makes, but does not train them."""
    del copy
    with tf.Graph().as_default(), tf.Session() as session:
        tf.keras.backend.set_session(session)
        made = {}
        exec(SOURCES['sequential'], made)
        network = made['network']()
        network.build([None, 64])
        network.save_weights('weights.h5')
        tf.keras.backend.set_session(None)


def make_records(copy):
    """Runs records.py."""
    del copy
    exec(SOURCES['records'], {})


def make_checkpoint(copy):
    """Saves the folder's own model as a run with --model_dir does; returns its arrays by name."""
    program = load_program('HogWild')
    flags.FLAGS.mark_as_parsed()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(7)
        step = tf.train.get_or_create_global_step()
        program.model.loss_and_metrics([tf.zeros([1, 64]), tf.zeros([1], tf.int64)], True)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(copy / 'pretrained' / 'model.ckpt'), step)
        return {variable.op.name: session.run(variable) for variable in tf.trainable_variables()}


FIRST = {'sequential': make_weights, 'tfrecords': make_records, 'fine_tuning': make_checkpoint}


def loaded(copy):
    """Returns the program of a copy, with its model, whose flags are parsed."""
    program = load_program(str(copy))
    flags.FLAGS.mark_as_parsed()
    return program


# What an optimizer, a rule or hooks are for, where a scheme or the check has no use for them.
NOT_USED = {'HogWild': {'local_rule', 'hooks'}, 'DOWNPOUR-Easy': {'optimizer', 'hooks'}}


@pytest.mark.parametrize('name, folder, window', [
    pytest.param(name, folder, window, id=f'{name}-{folder}',
                 marks=[] if (name, folder) in BRIEF else pytest.mark.thorough)
    for name in MODELS for folder, window in (('HogWild', 1), ('DOWNPOUR-Easy', WINDOW))])
def test_it_trains_as_in_plain_tensorflow(project, capsys, name, folder, window):
    """As `bash run.sh --check` finds; with what the recipe's section has as flags."""
    copy = project(folder, name)
    FIRST.get(name, lambda copy: None)(copy)
    program = loaded(copy)
    settings = {'check_steps': STEPS, 'batch_size': 8, **(
        {'communication_window': window} if window > 1 else {}), **(
        {'accumulate': 2} if name == 'recipe' else {})}
    with flagsaver.flagsaver(**settings):
        check.check(folder, program, counterpart.Counterpart())
    *_, losses, variables = capsys.readouterr().out.splitlines()
    assert losses.startswith('check: losses agree to ')
    assert re.match(r'check: \d+ variables agree to ', variables)
    assert program.model.left_out <= NOT_USED[folder]


# The script, and the model function, are themselves what the model is compared with.

def scheme_of(program):
    """Makes HogWild with one worker; returns its scheme, its network and its batches."""
    step = tf.train.get_or_create_global_step()
    drawn = program.model.train_batches(8, 1)
    network = building.Network(program.model, drawn)
    program.Scheme.worker_device = staticmethod(lambda task_index: None)
    return program.Scheme(network, step, flags.FLAGS, 0, 1), network, drawn


def initialize(session):
    for op in (tf.global_variables_initializer(), tf.local_variables_initializer(),
               tf.tables_initializer()):
        session.run(op)


def begin(session):
    """Initializes all; what is trained gets values that depend on its name and shape only."""
    initialize(session)
    for variable in tf.trainable_variables():
        random = np.random.RandomState(sum(map(ord, variable.op.name)))
        variable.load(random.uniform(-0.3, 0.5, variable.shape.as_list()), session)


def trained(program):
    """Trains for STEPS steps; returns lists of the batches, of the losses, and the values."""
    with tf.Graph().as_default(), tf.Session() as session:
        scheme, _, drawn = scheme_of(program)
        begin(session)
        runs = [session.run([drawn[0], scheme.train_op]) for _ in range(STEPS)]
        return [batch for batch, _ in runs], [each['loss'] for _, each in runs], values_of(session)


def values_of(session):
    """Returns a dict of the values of all variables of floats, by name."""
    return {variable.op.name: session.run(variable) for variable in tf.global_variables()
            if variable.dtype.base_dtype.is_floating}


def same(here, there):
    """Asserts that losses and variables agree; takes pairs of these."""
    np.testing.assert_allclose(here[0], there[0], rtol=1e-5)
    for name, value in there[1].items():
        np.testing.assert_allclose(here[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_script_and_its_model_make_the_same_of_the_same_batches(project):
    """Without what is drawn at random: losses, variables, and the slots of Adam."""
    program = loaded(project('HogWild', 'tumors_model', ('dropped = 0.2', 'dropped = 0.')))
    with flagsaver.flagsaver(batch_size=32):
        drawn, *here = trained(program)
    with tf.Graph().as_default(), tf.Session() as session:
        script, losses = {}, []
        exec(changed(SOURCES['tumors'], ('tf.disable_v2_behavior()\n', '')).split('saver = ')[0],
             script)
        begin(session)
        for x, y in drawn:
            losses.append(session.run([script['loss'], script['train_op']], {
                script['x']: x, script['y']: y})[0])
        same(here, (losses, values_of(session)))


def test_the_model_function_trains_as_an_estimator_has_it(project):
    """By its own train_op, with the moving averages of batch norm."""
    program = loaded(project('HogWild', 'estimator', ("'dropout': 0.2", "'dropout': 0.")))
    with flagsaver.flagsaver(learning_rate=0.01):
        drawn, *here = trained(program)
    assert program.model.remarks == [
        re.search('^worker 0: (the model.*)$', PAGE, re.MULTILINE)[1]]
    module, losses = program.model.module, []
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        features, labels = tf.nest.map_structure(
            lambda array: tf.placeholder(array.dtype, array.shape), drawn[0])
        spec = module.model_fn.model_fn(features, labels, module.KEYS.TRAIN, module.PARAMS)
        begin(session)
        for batch in drawn:
            fed = zip(tf.nest.flatten((features, labels)), tf.nest.flatten(batch))
            losses.append(session.run([spec.loss, spec.train_op], dict(fed))[0])
        same(here, (losses, values_of(session)))


# What else the page says.

def test_only_the_head_is_trained_and_the_rest_begins_as_saved(project):
    copy = project('HogWild', 'fine_tuning')
    saved = make_checkpoint(copy)
    program = loaded(copy)
    with tf.Graph().as_default(), tf.Session() as session:
        scheme, network, _ = scheme_of(program)
        initialize(session)
        before = values_of(session)
        session.run(scheme.train_op)
        after = values_of(session)
    assert [variable.op.name for variable in network.variables] == ['head/weights', 'head/biases']
    for name in 'weights', 'biases':
        backbone = f'backbone/first/{name}'
        assert (before[backbone] == saved[f'hidden_0/{name}']).all()
        assert (after[backbone] == before[backbone]).all()
        assert (after[f'head/{name}'] != before[f'head/{name}']).any()
    assert f'worker 0: {program.model.remarks[0]}\n' in PAGE


def test_the_hook_sees_what_the_scheme_trains_and_summaries_have_their_tags(project):
    program = loaded(project('DOWNPOUR-Easy', 'hooks'))
    with flagsaver.flagsaver(communication_window=WINDOW), tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        network = building.Network(program.model, program.model.train_batches(8, WINDOW))
        program.Scheme.worker_device = staticmethod(lambda task_index: None)
        scheme = program.Scheme(network, step, flags.FLAGS, 0, 1)
        hook, = network.hooks()
        with tf.Session() as session:
            initialize(session)
            silent, _ = session.run([hook.before_run(None).fetches, scheme.train_op])
        assert 0.1 < silent < 0.9
        assert set(network.summaries) == {'silent', 'units'}


def the_line_of(call, *args):
    """Returns what a call ends the program with."""
    with pytest.raises(SystemExit) as raised:
        call(*args)
    return raised.value.code


def test_a_flag_of_the_file_and_of_the_folder(project):
    """The page quotes the line."""
    taken_away = re.search('\nfor name in .*\n.*delattr.*', SOURCES['imports'])[0]
    copy = project('HogWild', 'imports', (taken_away, ''))
    assert f'```\n{the_line_of(loaded, copy)}\n```' in PAGE


def test_a_size_that_only_training_knows(project):
    """The page quotes the first line; then comes the line of the model's code."""
    size = 'tf.reshape(images, [int(images.shape[0]), 64])'
    program = loaded(project('HogWild', 'tfrecords', (
        'tf.layers.dense(images, 128, ', f'tf.layers.dense({size}, 128, ')))
    make_records(None)

    def make():
        with tf.Graph().as_default():
            _, network, _ = scheme_of(program)
            evaluation.Test(program.model, network.at_variables)

    first, *trace = the_line_of(make).splitlines()
    assert f'```\n{first}\n```' in PAGE and 'images.shape[0]' in ' '.join(trace)


def test_more_workers_than_files(project):
    program = loaded(project('HogWild', 'tfrecords'))
    make_records(None)
    with tf.Graph().as_default():
        assert the_line_of(program.model.train_batches, 8, 1, 5, 6).startswith('records has fewer')


# The commands of the page.

def sections():
    """Returns a dict of the page's sections, texts by the names of the models in them."""
    found = {}
    for text in re.split(r'^###? ', PAGE, flags=re.MULTILINE):
        for source in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
            name = FILES[BLOCKS.index(source)]
            found[name] = text.partition(f'{source}```')[2]  # Keras has two in one section
    return found


def forms(lines):
    """Returns a set of lines without their numbers, by which runs differ."""
    return {re.sub(r'\d+(\.\d+)?', '#', line.replace('joins', 'starts')) for line in lines}


def shown(text):
    """Returns the blocks of lines that workers print, as a section shows them."""
    blocks = re.findall(r'```\n(.*?)```', re.sub(r'```python\n.*?```', '', text, flags=re.DOTALL),
                        re.DOTALL)
    return [[line for line in block.splitlines() if line != '...'] for block in blocks
            if re.search('^worker ', block, re.MULTILINE)]


@pytest.mark.thorough
@pytest.mark.parametrize('name, folder, flags_, at_least', [
    ('tumors_model', 'HogWild', '', 0.93), ('estimator', 'HogWild', '--export_dir=exports', 0.9),
    ('functional', 'HogWild', '', 0.95),
    ('sequential', 'HogWild', '--train_steps=300 --log_every_n_steps=100', 0.95),
    ('imports', 'HogWild', '', 0.9), ('fine_tuning', 'HogWild', '--train_steps=500', 0.85),
    ('state', 'HogWild', '', 0.9), ('generator', 'HogWild', '', 0.9),
    ('tfrecords', 'HogWild', '', 0.9), ('recipe', 'HogWild', '', 0.95),
    ('recipe', 'DOWNPOUR-Easy', '--communication_window=5 --accumulate=2 --train_steps=100', 0.95),
    ('hooks', 'HogWild', '--model_dir=runs --save_summaries_secs=1', 0.95)])
def test_a_run_prints_what_the_page_shows(programs, project, name, folder, flags_, at_least):
    copy, text = project(folder, name), sections()[name]
    if name == 'sequential':
        (copy / 'weights.py').write_text(SOURCES['weights'], encoding='utf-8')
        assert programs.start([warm_python(), copy / 'weights.py'], cwd=copy).wait() == 0
    elif name == 'fine_tuning':
        model = (ROOT / folder / 'model.py').read_text(encoding='utf-8')
        (copy / 'model.py').write_text(model, encoding='utf-8')
        programs.run_sh(copy, '--model_dir=pretrained', cwd=copy).ends_well()
        (copy / 'model.py').write_text(SOURCES[name], encoding='utf-8')
    elif name in FIRST:
        FIRST[name](copy)
    assert f'    bash run.sh {flags_}'.rstrip() in text.splitlines()
    run = programs.run_sh(copy, *flags_.split(), cwd=copy)
    run.ends_well()
    assert float(run.wait_for(TEST)['accuracy']) >= at_least, str(run)
    blocks = shown(text)
    lines = blocks[1] if folder == 'DOWNPOUR-Easy' else blocks[0]
    assert lines and forms(lines) <= forms(run.out), str(run)


@pytest.mark.thorough
def test_the_script_runs(programs, tmp_path):
    (tmp_path / 'tumors.py').write_text(SOURCES['tumors'], encoding='utf-8')
    run = programs.start([warm_python(), tmp_path / 'tumors.py'], cwd=tmp_path)
    assert run.wait() == 0, str(run)
    last = run.out[-1].split()
    assert last[:2] == ['test', 'accuracy'] and float(last[2]) > 0.9
    names = ['weights_1', 'biases_1', 'weights_2', 'biases_2']
    assert list(starts.of_checkpoint(str(tmp_path / 'tumors'), names)) == names


# The lines in which the library refuses a model.

PLACES = ['tfdist/model/*.py', *(f'tfdist/scheme/{name}.py' for name in (
    'trainee', 'recipe', 'local_rules', 'tables')), 'tfdist/synchronous/accumulators.py']
# One is of no model; one is said of an older form; one has two causes, which are two rows.
NOT_IN_THE_TABLE = ('--model=', "The model's loss_and_accuracy",
                    'The table ... is of ..., and ...:')
OF_OTHER_PLACES = ('The table ... is of ..., and', 'The flag --', 'The test set is empty',
                   "The model's train_batches came", 'The data cannot', 'A hook of the model')


def text_of(node):
    """Returns the text of an expression of the syntax tree, with `...` for what varies."""
    if isinstance(node, ast.JoinedStr):
        return ''.join(text_of(part) for part in node.values)
    return getattr(node, 's', '...') if not isinstance(node, ast.FormattedValue) else '...'


def lines_of_the_code():
    """Returns a list of what the library ends a program with, of models."""
    calls = [node for place in PLACES for path in sorted(ROOT.glob(place))
             for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
             if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'exit']
    return [text_of(call.args[0]) for call in calls]


def test_the_table_of_lines_is_that_of_the_code():
    """In docs/models.md: a row for each line, and no other."""
    page = (ROOT / 'docs' / 'models.md').read_text(encoding='utf-8')
    rows = re.findall(r'^\| `(.*?)` \|', page.split('## What does not work')[1], re.MULTILINE)
    lines = lines_of_the_code()
    assert len(lines) > 40
    forms_ = [re.compile('.*?'.join(map(re.escape, row.split('...'))), re.DOTALL) for row in rows]
    for line in lines:
        assert line.startswith(NOT_IN_THE_TABLE) or any(form.match(line) for form in forms_), line
    for row, form in zip(rows, forms_):
        assert row.startswith(OF_OTHER_PLACES) or any(map(form.match, lines)), row
