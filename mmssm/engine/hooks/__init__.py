from mmssm.engine.hooks.pole_stability_hook import PoleStabilityHook

__all__ = ['PoleStabilityHook']
