"""How pictures look: colours that most eyes can tell apart, and a look for each folder."""

import io

import matplotlib.ticker
import PIL.Image

COLOURS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#332288', '#882255',
           '#999933']
MARKERS = 'os^Dv<>P'
GREY = '#999999'
STYLE = {'figure.dpi': 100, 'savefig.dpi': 110, 'font.size': 9, 'axes.spines.top': False,
         'axes.spines.right': False, 'axes.grid': True, 'grid.color': '#E6E6E6',
         'axes.axisbelow': True, 'legend.frameon': False, 'legend.fontsize': 8,
         'figure.facecolor': 'white', 'axes.titlesize': 9, 'axes.titleweight': 'bold',
         'axes.titlelocation': 'left'}
DASHES = '-', (0, (5, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2))
# The folders by kind, see `folders.GROUPS`. Those of a kind differ in colour; no two have the same
# colour and the same marker.
FOLDERS = {
    'one process': ['Non-Distributed-Setup', 'Multiple-GPUs-Single-Machine'],
    'asynchronous, in each step': ['HogWild', 'DC-ASGD', 'SSP', 'Distributed-MNIST',
                                   'Elastic-Workers', 'Work-Queue', 'Distributed-Setup',
                                   'Parameter-Placement', 'Gossip'],
    'asynchronous, in windows': ['AGN', 'DOWNPOUR', 'DynSGD', 'DOWNPOUR-Easy', 'AEASGD',
                                 'AEAMSGD'],
    'synchronous': ['Synchronous-SGD', 'Ring-AllReduce', 'Local-SGD', 'SAGN',
                    'Synchronous-SGD-different-learning-rates', 'In-Graph-Replication',
                    'Model-Parallel', 'DiLoCo', 'FedAvg']}


def look_of(folder):
    """Returns how a folder is drawn, in all pictures: keywords for `Axes.plot`, a dict.

    Where lines lie on each other, the later one of a kind is thinner, in front, and broken.
    """
    for kind, members in enumerate(FOLDERS.values()):
        if folder in members:
            i = members.index(folder)
            colour = COLOURS[(i + kind - 1) % len(COLOURS)] if kind else ('#000000', '#666666')[i]
            return {'color': colour, 'marker': MARKERS[(i + 3 * kind) % len(MARKERS)],
                    'markerfacecolor': 'white' if kind == 2 else colour,
                    'markersize': 6.5 - 0.5 * i, 'linewidth': 2.6 - 0.2 * i,
                    'linestyle': DASHES[(i + kind // 3) % len(DASHES)], 'zorder': 2 + i / 10}
    return {'color': GREY, 'marker': 'X', 'markersize': 4}


def logarithmic(panel, axis, steps=(1, 2, 5)):
    """Makes an axis, 'x' or 'y', logarithmic, with plain numbers at `steps` of each decade."""
    getattr(panel, f'set_{axis}scale')('log')
    its = getattr(panel, f'{axis}axis')
    its.set_major_locator(matplotlib.ticker.LogLocator(subs=steps))
    its.set_major_formatter('{x:,g}')
    its.set_minor_locator(matplotlib.ticker.NullLocator())


def legend_beside(panel):
    """Puts the legend of a panel to its right, where it hides no line."""
    panel.legend(loc='center left', bbox_to_anchor=(1.01, 0.5), handlelength=3.2)


def write(figure, path, colours=128):
    """Writes a figure into a file of PNG, a path, with few colours: that is a third of its size."""
    whole = io.BytesIO()
    figure.savefig(whole, format='png')
    PIL.Image.open(whole).convert('RGB').quantize(colours, method=2).save(str(path), optimize=True)
