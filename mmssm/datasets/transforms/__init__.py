from mmssm.datasets.transforms.loading import LoadFrames
from mmssm.datasets.transforms.pipeline import ClipPipeline

__all__ = ['ClipPipeline', 'LoadFrames']
