"""Pure numpy metrics, and the files that predictions are kept in."""

from mmssm.evaluation.functional.averaging import MeanStd, average_scores
from mmssm.evaluation.functional.confusion import confusion_matrix
from mmssm.evaluation.functional.prediction_io import (
    FramePrediction,
    PredictionWriter,
    VideoPredictions,
    read_predictions,
    stack_predictions,
    write_predictions,
)
from mmssm.evaluation.functional.strict import (
    PHASE_SCORES,
    StrictOptions,
    StrictScores,
    phase_scores,
    score_counts,
    score_videos,
)

__all__ = [
    'PHASE_SCORES',
    'FramePrediction',
    'MeanStd',
    'PredictionWriter',
    'StrictOptions',
    'StrictScores',
    'VideoPredictions',
    'average_scores',
    'confusion_matrix',
    'phase_scores',
    'read_predictions',
    'score_counts',
    'score_videos',
    'stack_predictions',
    'write_predictions',
]
