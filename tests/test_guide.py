"""The guide of the front page: what it asks, what follows from the answers, and its pages."""

import pytest

from conftest import ROOT
from measuring import results

import advise_costs
import advise_cluster
import guide
from test_advise import costs_of


def row(cluster, rank, scheme, seconds, model='mnist', **values):
    """Returns a row of the table."""
    return dict(dict.fromkeys(guide.COLUMNS, ''), **dict(
        model=model, cluster=cluster, rank=str(rank), scheme=scheme, seconds=str(seconds),
        window='1', workers='8', parameters='2591208', local_step='0.0031', **values))


ROWS = [row('rack', 1, 'Synchronous-SGD', 2.1), row('rack', 0, 'Ring-AllReduce', 2.),
        row('rack', 2, 'one process', 6.), row('rack', 3, 'AGN', 9.),
        row('office', 0, 'one process', 6.), row('office', 1, 'AGN', 6.2),
        row('sites', 0, 'AGN', '')]


def test_what_stands_in_the_table():
    head, _, rack, office, sites = guide.table(ROWS).splitlines()
    assert head.endswith('an MLP: 0.6 million parameters, 3.1 ms for a local step; to 94 % |')
    assert rack.endswith('there and back | [Ring-AllReduce](Ring-AllReduce/), 8 workers: 2 s; as '
                         'soon: [Synchronous-SGD](Synchronous-SGD/); one process: 6 s |')
    assert office.endswith('| one process: 6 s; the next: [AGN](AGN/), 6.2 s |')
    little = [row('office', 0, 'one process', 6.), row('office', 1, 'AGN', 5.9)]
    assert '| one process: 6 s; hardly sooner: [AGN](AGN/), 5.9 s |' in guide.table(little)
    assert sites.endswith('| none comes there in the time simulated |')
    alone = dict(ROWS[2], rank='0', cluster='sites')
    assert guide.table([*ROWS[:-1], alone, dict(ROWS[-1], rank='1')]).endswith(
        '| one process: 6 s; none of the others comes there in the time simulated |')
    far = dict(ROWS[2], cluster='sites', seconds='', simulated_seconds='4.25')
    assert guide.table([*ROWS[:-1], dict(ROWS[-1], seconds='3'), far]).endswith(
        '| [AGN](AGN/), 8 workers: 3 s; one process: over 4.25 s |')
    window = dict(ROWS[3], rank='0', cluster='sites', window='20')
    assert '[AGN](AGN/), 8 workers, window 20: 9 s |' in guide.table(ROWS[:-1] + [window])
    assert guide.table(ROWS[:-1]).endswith('50 ms |  |'), 'not asked yet'


def test_where_a_scheme_is_first():
    """A tenth later is as soon; 9 s are not."""
    assert guide.first(ROWS).splitlines() == [
        '- [Ring-AllReduce](../Ring-AllReduce/): mnist (rack)',
        '- [Synchronous-SGD](../Synchronous-SGD/): mnist (rack)',
        '- one process: mnist (office)', '- [AGN](../AGN/): mnist (office)']


class Advisor:
    """Answers at once."""

    def __init__(self, path):
        self.asked, self.path = [], path
        costs_of().write(path)

    def costs(self, *_):
        return self.path

    def answer(self, model, flags, target, cluster, *rest):
        self.asked.append((model, flags, target, cluster, *rest))
        return {'advised': [{'scheme': 'AGN', 'window': 10, 'workers': 4, 'ps': 1,
                             'step_size': 0.1, 'seconds': 2.5, 'from': 2., 'to': 3.,
                             'limited_by': 'updates', 'more': 1},
                            {'scheme': 'one process', 'seconds': None}]}


def test_what_is_asked(tmp_path):
    advisor = Advisor(tmp_path / 'costs.json')
    best, other = guide.ask(advisor, 'resnet', 'sites', 2.)
    assert advisor.asked == [('resnet', ['--model=resnet'], 0.9, guide.CLUSTERS['sites'].cluster,
                              'sites', 2.)]
    assert (best['rank'], best['scheme'], best['seconds']) == ('0', 'AGN', '2.5')
    costs = advise_costs.read(tmp_path / 'costs.json')
    assert float(best['local_step']) == pytest.approx(costs.get('one process'), rel=0.01)
    assert (other['rank'], other['seconds'], other['window']) == ('1', '', '')
    assert set(best) == set(guide.COLUMNS)


@pytest.mark.parametrize('name', guide.CLUSTERS)
def test_the_advisor_knows_each_cluster(name):
    cluster = advise_cluster.Cluster(guide.CLUSTERS[name].cluster)
    assert f'{cluster.hosts} hosts' in guide.CLUSTERS[name].words


@pytest.mark.parametrize('arguments, complaint', [
    (['--only=none'], '--only=none: there are mnist, teacher, resnet, each with rack, office, '),
    (['--minutes=0'], '--minutes=0: it has to be above 0.')])
def test_bad_options(arguments, complaint):
    with pytest.raises(SystemExit) as error:
        guide._options(arguments)
    assert str(error.value).startswith(complaint)


def test_the_pages_are_of_the_results(tmp_path):
    """--draw mends this."""
    (tmp_path / 'docs').mkdir()
    for page in guide.PAGES:
        (tmp_path / page).write_bytes((ROOT / page).read_bytes())
    rows = results.read(guide.TABLE)
    assert {(each['model'], each['cluster']) for each in rows} == {
        (model, cluster) for model in guide.MODELS for cluster in guide.CLUSTERS}
    guide.publish(rows, tmp_path)
    for page in guide.PAGES:
        assert (tmp_path / page).read_bytes() == (ROOT / page).read_bytes()
