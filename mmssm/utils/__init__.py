from mmssm.utils.optional import require

__all__ = ['require']
