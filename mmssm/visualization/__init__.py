from mmssm.visualization.poles import plot_horizons, plot_layer
from mmssm.visualization.timeline import plot_timeline

__all__ = ['plot_horizons', 'plot_layer', 'plot_timeline']
