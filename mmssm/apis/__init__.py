"""What to call from a program: streaming sessions."""

from mmssm.apis.streaming import StreamingSession, StreamResult

__all__ = ['StreamResult', 'StreamingSession']
