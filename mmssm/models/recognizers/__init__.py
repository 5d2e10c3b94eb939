from mmssm.models.recognizers.phase_recognizer import (
    PhaseRecognizer,
    RecognizerState,
    StreamOutput,
)

__all__ = ['PhaseRecognizer', 'RecognizerState', 'StreamOutput']
