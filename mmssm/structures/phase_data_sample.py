"""Labels and predictions of one lane's window of clips."""

from mmengine.structures import BaseDataElement


class PhaseDataSample(BaseDataElement):
    """Labels and predictions of ``num_clips`` consecutive clips of one lane.

    A lane is a stream of whole videos, cut into clips of ``clip_len`` frames;
    a window is what one iteration sees of it. The last clip of a video is
    padded to ``clip_len`` by repeating its last frame.

    Data fields:
        - ``gt_phase`` (Tensor): int64 labels ``(num_clips, clip_len)``;
          ``ignore_index`` (-1) on padded and on unlabelled frames.
        - ``pred_scores`` (Tensor): float32 class probabilities
          ``(num_clips, clip_len, num_classes)``.
        - ``pred_phase`` (Tensor): int64 ``(num_clips, clip_len)``.
        - ``pred_intensity`` (Tensor): float32 ``(num_clips, clip_len)``, the
          transition intensity lambda in 0..1, mean over layers; absent if the
          temporal model has none.

    Meta fields, each a list with one entry per clip:
        - ``video_id`` (str), ``''`` for an empty clip that only fills a
          window;
        - ``frame_idx`` (int): index of the clip's first frame in its video,
          in frames of the dataset's ``fps``;
        - ``num_frames`` (int): frames that are real, ``0`` for an empty clip;
        - ``new_video`` (bool): whether the clip is the first of its video,
          or the first of a window that belongs to no lane: the state starts
          anew;
        - ``end_of_video`` (bool): whether it is the last.

    Meta fields of the window: ``lane`` (int), its position in the batch, and
    ``num_lanes`` (int). Both are -1 if every sample of the batch is
    independent of all others.
    """
