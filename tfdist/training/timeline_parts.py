"""Merges what several workers traced into one picture on one clock, and one trace for Perfetto.

    python -m tfdist.training.timeline_parts --timeline=FILE.png

Each worker writes its part beside the picture when it ends, such as FILE.png.worker-0.part.json.
The last one finds the parts of all others there, draws the picture and removes them. Where workers
have no file system in common, bring the parts to one place: the command above merges those that it
finds there.
"""

import collections
import contextlib
import glob
import json
import os
import statistics
import sys

from absl import flags
from tfdist.start import console
from tfdist.training import clock_offsets, gantt, lanes

FLAGS = flags.FLAGS
flags.DEFINE_integer('timeline_steps', 1, 'how many runs of the train op, one after the other, '
                     '--timeline shows of a worker', lower_bound=1)

# A traced run: when its worker began it, and had its result, in milliseconds of the clock; whether
# the trace `is_whole`; and its `events`, a list of `lanes.Event`.
Run = collections.namedtuple('Run', 'began ended is_whole events')
# What a worker traced: the `task`; its `number` among `of` workers, which is None if workers come
# and go; what a run takes untraced, in milliseconds, or None; and its `runs`.
Part = collections.namedtuple('Part', 'task number of untraced runs')

# What the kinds of `lanes` are called, in the order of the rows of a task.
_CALLED = {'reads': 'reads', 'computes': 'computes', 'transfers': 'receives', 'updates': 'updates',
           'waits': 'waits'}
_COLOURS = {'computes': gantt.BLUE, 'reads': gantt.SKY, 'receives': gantt.ORANGE,
            'updates': gantt.GREEN, 'waits': gantt.GREY}
_FAR_MS = 10_000  # so far from the others a part is of another run, or of a worker that came later


def path_of(picture, number):
    """Returns the path of the part of a worker of this number, of the picture with this path."""
    return f'{picture}.worker-{number}.part.json'


def remove(path):
    """Removes a part, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def add(picture, part, steps):
    """Writes the part of a worker, and draws the picture if those of all others are there.

    Args:
      picture: string, the path.
      part: `Part`.
      steps: int, how many runs of a worker to show.
    """
    own = path_of(picture, part.number)
    try:
        with gantt.replaced(own) as file:
            json.dump(part, file)
        paths = (_beside(picture) if part.of is None else
                 [path_of(picture, number) for number in range(part.of)])
        if not all(map(os.path.exists, paths)):
            console.say('timeline', f'what {part.task} did is in {own}; the worker that ends last '
                        'draws the picture')
            return
        with contextlib.suppress(FileNotFoundError):  # another one has drawn it at the same time
            merge(picture, [read(path) for path in paths], steps, part.of is None and part.task)
            if part.of is not None:
                for path in paths:
                    remove(path)
    except (OSError, ValueError) as error:  # no reason to lose the run
        console.say('timeline', f'{picture} is not drawn: {error}')


def _beside(picture):
    """Returns the paths of the parts of a picture."""
    return sorted(glob.glob(f'{glob.escape(picture)}.worker-*.part.json'))


def read(path):
    """Returns the `Part` in a file.

    Raises:
      ValueError: if it has none.
    """
    try:
        with open(path, encoding='utf-8') as file:
            *rest, runs = json.load(file)
        return Part(*rest, [Run(*run, [lanes.Event(*event) for event in events])
                            for *run, events in runs])
    except (ValueError, TypeError) as error:
        raise ValueError(f'{path} is not the part of a timeline') from error


def merge(picture, parts, steps, only=None):
    """Draws the picture, writes the trace beside it, and says what each worker did.

    Args:
      picture: string, the path.
      parts: list of `Part`.
      steps: int, how many runs of a worker to show.
      only: string, the task of which to say what it did; by default all.
    """
    traced = [part for part in map(_whole_runs, parts) if part.runs]
    for task in sorted({part.task for part in parts} - {part.task for part in traced}):
        console.say('timeline', f'{task} made no steps that could be traced')
    first = traced[0].runs[0].began if traced else 0
    far = [part for part in traced if abs(part.runs[0].began - first) > _FAR_MS]
    for part in far:
        console.say('timeline', f'{part.task} is left out: its steps were traced '
                    f'{(part.runs[0].began - first) / 1e3:.0f} s after those of {traced[0].task}')
    traced = [part for part in traced if part not in far]
    if not traced:
        console.say('timeline', 'nothing was traced, so there is no picture: train for more steps')
        return
    traced = _on_one_clock(traced)
    for part in traced:
        if not only or part.task == only:
            console.say('timeline', f'{part.task}: {in_words(part)}')
    trace = _draw(picture, traced, steps)
    console.say('timeline', f'drawn in {picture}; {trace} is its trace, for '
                'https://ui.perfetto.dev')


def _whole_runs(part):
    """Returns a `Part` with those of its runs that are whole; with all, if none is."""
    runs = [run for run in part.runs if run.events]
    return part._replace(runs=[run for run in runs if run.is_whole] or runs)


def in_words(part):
    """Returns what a worker does in a run of its train op, the mean of the typical traced ones."""
    each = [lanes.shares(run.events) for run in typical(part.runs, lambda run: span([run]))]
    means = {kind: statistics.mean(one[kind] for one in each) for kind in each[0]}
    parts = [f'{name} {means[kind]:.2f}' for kind, name in _CALLED.items() if means[kind] > .005]
    takes = '' if part.untraced is None else f'a run of the train op takes {part.untraced:.1f} ms; '
    return (f'{takes}{len(part.runs)} traced ones, {sum(means.values()):.1f} ms from the first '
            f'operation to the last: {", ".join(parts)}, between these {means["between"]:.2f}')


def typical(found, span_of):
    """Returns those that take neither longest nor shortest: the half in the middle.

    Args:
      found: list.
      span_of: function of one of these that returns its begin and its end.
    """
    by_length = sorted(found, key=lambda one: span_of(one)[1] - span_of(one)[0])
    quarter = len(found) // 4
    return by_length[quarter:len(found) - quarter]


def _on_one_clock(parts):
    """Returns parts with all times on the clock of the first one's task; says if clocks differ."""
    offsets = clock_offsets.find([run.events for part in parts for run in part.runs],
                                 parts[0].task)
    for task, offset in sorted(offsets.items()):
        if offset:
            console.say('timeline', f'the clock of {task} differs from that of {parts[0].task} by '
                        f'about {offset:.1f} ms, which is taken off')

    def moved(part):
        own = offsets.get(part.task, 0.)
        return part._replace(runs=[Run(
            run.began - own, run.ended - own, run.is_whole,
            [event._replace(begin=event.begin - offsets.get(event.clock, 0.),
                            end=event.end - offsets.get(event.clock, 0.))
             for event in run.events]) for run in part.runs])

    return [moved(part) for part in parts] if any(offsets.values()) else parts


def span(runs):
    """Returns the begin of the first event of runs, and the end of the last one."""
    events = [event for run in runs for event in run.events]
    return min(event.begin for event in events), max(event.end for event in events)


def overlap_of(one, other):
    """Returns how long two spans, pairs of begin and end, overlap; 0 if they do not."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def shown(parts, steps):
    """Returns what to show: the begin and the end of typical runs of the first worker.

    Of the runs that take neither longest nor shortest, those count that overlap most with traced
    runs of the other workers. These are shown as a whole, as far as that does not take as long
    again.

    Args:
      parts: list of `Part`, with runs.
      steps: int, how many runs, one after the other.
    """
    runs = parts[0].runs
    steps = min(steps, len(runs))
    windows = [span(runs[i:i + steps]) for i in range(len(runs) - steps + 1)]
    others = [span([run]) for part in parts[1:] for run in part.runs]

    begin, end = max(typical(windows, tuple),
                     key=lambda window: sum(overlap_of(window, other) for other in others))
    with_it = [other for other in others if overlap_of(other, (begin, end))]
    length = end - begin
    return (max(begin - length, min([begin, *(other[0] for other in with_it)])),
            min(end + length, max([end, *(other[1] for other in with_it)])))


def _draw(picture, parts, steps):
    """Draws the picture and writes the trace, whose path it returns."""
    begin, end = limits = shown(parts, steps)
    events = [(part.task, event) for part in parts for run in part.runs for event in run.events]
    tasks = sorted({event.task for _, event in events}, key=_order)
    rows = {(task, kind): gantt.Row(task, _CALLED[kind]) for task in tasks for kind in _CALLED}
    numbers = {key: number for number, key in enumerate(rows)}
    bars = [gantt.Bar(
        numbers[event.task, event.kind], _CALLED[event.kind], (event.begin - begin) / 1e3,
        (event.end - begin) / 1e3, f'{event.bytes:,} B' if event.bytes else '', event.name,
        _details(task, event)) for task, event in events]
    inside = _in_layers([bar for (_, event), bar in zip(events, bars)
                         if overlap_of((event.begin, event.end), limits)])
    drawn = {bar.row for bar in inside}
    gantt.draw(picture, {numbers[key]: f'{row.task} {row.name}' for key, row in rows.items()
                         if numbers[key] in drawn}, inside,
               {what: colour for what, colour in _COLOURS.items()
                if what in {bar.what for bar in inside}},
               limits=(0, (end - begin) / 1e3), inches=0.25, xlabel='milliseconds')
    # Viewers want that what overlaps is in several rows.
    layered = _in_layers(bars)
    places = {place: number for number, place in enumerate(sorted(
        {(bar.row, bar.layer) for bar in layered}))}
    by_number = list(rows.values())
    return gantt.write(picture, {number: by_number[row] for (row, _), number in places.items()},
                       [bar._replace(row=places[bar.row, bar.layer]) for bar in layered])


def _in_layers(bars):
    """Returns a list of `gantt.Bar` with layers such that those of one do not overlap."""
    ends, found = collections.defaultdict(list), []  # the end of what is last in each layer
    for bar in sorted(bars, key=lambda bar: bar.begin):
        own = ends[bar.row]
        layer = next((i for i, end in enumerate(own) if end <= bar.begin), len(own))
        own[layer:layer + 1] = [bar.end]
        found.append((layer, bar))
    return [bar._replace(layer=(layer, len(ends[bar.row]))) for layer, bar in found]


def _order(task):
    """Returns the key of a task by which the ps come first, and then the others."""
    job, _, number = task.partition(' ')
    return job != 'ps', job, number.zfill(9)


def _details(task, event):
    """Returns what a viewer shows of an `Event` in a run of a task."""
    found = {'in a run of': task}
    if event.kind == 'transfers':
        found['bytes'] = event.bytes
    if event.sender:
        found['from'] = event.sender
    if event.clock != event.task:
        found['on'] = event.clock
    return found


def main(_):
    if not gantt.FLAGS.timeline:
        sys.exit('Say of which picture the parts are to be merged: --timeline=FILE.png.')
    gantt.check()
    paths = _beside(gantt.FLAGS.timeline)
    if not paths:
        sys.exit(f'--timeline={gantt.FLAGS.timeline}: there are no parts of it, such as '
                 f'{path_of(gantt.FLAGS.timeline, 0)}.')
    try:
        merge(gantt.FLAGS.timeline, [read(path) for path in paths], FLAGS.timeline_steps)
    except (OSError, ValueError) as error:
        sys.exit(f'--timeline={gantt.FLAGS.timeline} is not drawn: {error}.')


if __name__ == '__main__':
    console.run(main)
