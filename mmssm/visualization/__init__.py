from mmssm.visualization.timeline import plot_timeline

__all__ = ['plot_timeline']
