"""Plays the protocols in orders drawn by a seed, and tells the shortest one that goes wrong.

    python tests/searching/search.py                         each protocol in turn, 100,000 orders
    python tests/searching/search.py --schedules=5000 --only=tickets,ssp
    python tests/searching/search.py --seed=7 --only=ssp --schedules=1       one order again
    python tests/searching/search.py --planted               finds faults that are planted

An order is of ops, not of runs: a run of a session is divided into the ops that touch the state of
a parameter server, and the arrivals of tensors. The seed chooses whose op comes next, who is
killed, whose machine is lost without a word, which ps is lost, and who is started again. When the
drawn part ends, faults end, too, and all have to come to the end of the run.
"""

import argparse
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]

from searching import (barrier_orders, lock_orders, members_orders, pairs_orders,  # noqa: E402
                       planted, ring_orders, rounds_orders, schedules, ssp_orders,
                       stopping_orders, tickets_orders, turns_orders)

PROTOCOLS = [barrier_orders.Barrier, turns_orders.Turns, stopping_orders.Stopping, ssp_orders.Ssp,
             tickets_orders.Tickets, lock_orders.Lock, members_orders.Members, ring_orders.Rings,
             pairs_orders.Pairs, rounds_orders.Rounds]
_MOST_OF_A_PLANT = 4000  # schedules


def first_failure(protocol, seeds):
    """Plays schedules until one fails.

    Args:
      protocol: `protocol.Protocol`.
      seeds: iterable of ints.

    Returns:
      The number of schedules that were played; and None, or the seed, the setting, and the
      `schedules.Outcome`.
    """
    played = 0
    for seed in seeds:
        setting = protocol.settings[seed % len(protocol.settings)]
        outcome = schedules.play(protocol, setting, schedules.Drawn(seed))
        played += 1
        if outcome.failure:
            return played, (seed, setting, outcome)
    return played, None


def tell(protocol, seed, setting, outcome):
    """Prints the story of the shortest schedule that fails as this one does."""
    shortest = schedules.shrink(protocol, setting, outcome)
    sizes = ', '.join(f'{name}={value}' for name, value in setting.items())
    print(f'{protocol.name}, {sizes}: --seed={seed}, of {len(outcome.actions)} choices '
          f'{len(shortest.actions)} are left')
    print('\n'.join(f'    {line}' for line in shortest.story()), flush=True)


def search(protocols, seed, number):
    """Searches each protocol; returns whether nothing was found."""
    right = True
    for each in protocols:
        protocol, began = each(), time.monotonic()
        played, found = first_failure(protocol, range(seed, seed + number))
        secs = time.monotonic() - began
        print(f'{protocol.name}: {played} orders in {secs:.0f} s, '
              f'{"one goes wrong" if found else "none goes wrong"}', flush=True)
        if found:
            right = False
            tell(protocol, *found)
    return right


def find(name, most=_MOST_OF_A_PLANT):
    """Searches for a fault; returns how many orders it took, and what `first_failure` found.

    Args:
      name: string, one of `planted.PLANTS`.
      most: int, orders to play.
    """
    one = planted.PLANTS[name]
    protocol = one.protocol()
    protocol.settings, protocol.only_faults = one.settings or protocol.settings, one.faults
    played, found = first_failure(protocol, range(most))
    return played, found and (protocol, *found)


def search_planted(stories):
    """Searches for each fault that can be planted; returns whether all were found."""
    right, began = True, time.monotonic()
    print('| protocol | what goes wrong | orders until it is found | lines of its story |\n'
          '|---|---|---|---|')
    for name, one in planted.PLANTS.items():
        with planted.plant(one):
            played, found = find(name)
            shortest = found and schedules.shrink(found[0], *found[2:])
        right &= shortest is not None
        print(f'| {one.protocol.name} | {one.sentence} | {played if found else "never"} | '
              f'{len(shortest.story()) if found else ""} |', flush=True)
        if stories and found:
            print('\n'.join(f'    {line}' for line in shortest.story()), flush=True)
    print(f'{len(planted.PLANTS)} faults in {time.monotonic() - began:.0f} s')
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--schedules', type=int, default=100000, help='of all protocols together')
    parser.add_argument('--seed', type=int, default=0, help='of the first; the next has the next')
    parser.add_argument('--only', default='', help='protocols, with commas between them')
    parser.add_argument('--planted', action='store_true', help='search for planted faults')
    parser.add_argument('--stories', action='store_true', help='and tell the story of each')
    args = parser.parse_args()
    if args.planted:
        sys.exit(not search_planted(args.stories))
    only = [name for name in args.only.split(',') if name]
    unknown = set(only) - {each.name for each in PROTOCOLS}
    if unknown:
        sys.exit(f'--only={args.only}: there is no protocol {" or ".join(sorted(unknown))}. Take '
                 + ', '.join(each.name for each in PROTOCOLS) + '.')
    chosen = [each for each in PROTOCOLS if not only or each.name in only]
    sys.exit(not search(chosen, args.seed, max(args.schedules // len(chosen), 1)))


if __name__ == '__main__':
    main()
