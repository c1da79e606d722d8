"""How pictures look: colours that all can tell apart, of Okabe and Ito but for the last one."""

import matplotlib.ticker

COLOURS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#882255']
MARKERS = 'os^Dv<>P'
GREY = '#999999'
STYLE = {'figure.dpi': 100, 'savefig.dpi': 110, 'font.size': 9, 'axes.spines.top': False,
         'axes.spines.right': False, 'axes.grid': True, 'grid.color': '#E6E6E6',
         'axes.axisbelow': True, 'legend.frameon': False, 'legend.fontsize': 8,
         'figure.facecolor': 'white', 'axes.titlesize': 9, 'axes.titleweight': 'bold',
         'axes.titlelocation': 'left'}


def logarithmic(panel, axis, steps=(1, 2, 5)):
    """Makes an axis, 'x' or 'y', logarithmic, with plain numbers at `steps` of each decade."""
    getattr(panel, f'set_{axis}scale')('log')
    its = getattr(panel, f'{axis}axis')
    its.set_major_locator(matplotlib.ticker.LogLocator(subs=steps))
    its.set_major_formatter('{x:,g}')
    its.set_minor_locator(matplotlib.ticker.NullLocator())
