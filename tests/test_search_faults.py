"""The protocols in orders drawn by a seed: none goes wrong, and what is planted is found."""

import subprocess
import sys

import pytest

from cases import briefly
from conftest import ROOT
from searching import planted, search, story

# The planted faults of `make test`.
BRIEF = ('token at once', 'tick first', 'no section', 'the average is assigned',
         'admitted first')
# Of each protocol.
ORDERS = {'barrier': 80, 'turns': 40, 'stopping': 20, 'ssp': 160, 'tickets': 130, 'lock': 250,
          'members': 190, 'ring': 40, 'pairs': 130, 'rounds': 20}


def first_failure(protocol, seeds):
    """Returns the story of the first order that goes wrong, or None."""
    _, found = search.first_failure(protocol, seeds)
    return found and (found[0], '\n'.join(story.tell(found[2].events)), str(found[2].failure))


@pytest.mark.parametrize('protocol', briefly(
    search.PROTOCOLS, lambda each: each.name in ('barrier', 'ring')),
    ids=lambda each: each.name)
def test_no_order_goes_wrong(protocol):
    some = protocol()
    some.settings = some.settings[::2]
    assert first_failure(some, range(ORDERS[protocol.name])) is None


def test_the_program():
    """By itself, as `make search-faults` starts it, in an order of each protocol.

    It has none of what pytest or other tests set up.
    """
    said = subprocess.run([sys.executable, str(ROOT / 'tests' / 'searching' / 'search.py'),
                           f'--schedules={len(search.PROTOCOLS)}'], stdout=subprocess.PIPE,
                          universal_newlines=True, timeout=120, check=False)
    assert said.returncode == 0 and said.stdout.count('none goes wrong') == len(search.PROTOCOLS)


@pytest.mark.thorough
@pytest.mark.parametrize('protocol', search.PROTOCOLS, ids=lambda each: each.name)
def test_no_other_order_goes_wrong(protocol):
    assert first_failure(protocol(), range(15 * ORDERS[protocol.name])) is None


@pytest.mark.parametrize('name', briefly(planted.PLANTS, BRIEF))
def test_what_is_planted_is_found(name):
    with planted.plant(planted.PLANTS[name]):
        assert search.find(name)[1]


def test_a_story_is_short_and_the_same_each_time():
    with planted.plant(planted.PLANTS['bound by one']):
        _, (protocol, _, setting, outcome) = search.find('bound by one')
        stories = [search.schedules.shrink(protocol, setting, outcome).story() for _ in range(2)]
    assert stories[0] == stories[1] and len(stories[0]) <= 12
    assert stories[0][-1].startswith('a worker reads what is too old: worker ')
