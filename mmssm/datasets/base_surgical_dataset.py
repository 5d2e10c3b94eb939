"""Videos with one surgical phase per frame."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mmengine.logging import print_log

from mmssm.datasets.annotations import read_phase_file
from mmssm.datasets.frame_folder import list_frames
from mmssm.datasets.samplers.indices import ClipIndex, WindowIndex
from mmssm.datasets.transforms.pipeline import ClipPipeline
from mmssm.registry import DATASETS
from mmssm.structures import PhaseDataSample

IGNORE_INDEX = -1
FRAME_COUNT_POLICIES = ('truncate', 'error')
DEFAULT_PALETTE = (
    (31, 119, 180),
    (255, 127, 14),
    (44, 160, 44),
    (214, 39, 40),
    (148, 103, 189),
    (140, 86, 75),
    (227, 119, 194),
    (188, 189, 34),
    (23, 190, 207),
    (127, 127, 127),
)


class VideoInfo(NamedTuple):
    """One video: its name, the paths of its frames and their labels.

    Attributes:
        video_id (str): Name of the video, e.g. ``'video41'``.
        frame_dir (str): Folder of the frames.
        frame_names (list[str]): File names in order.
        phases (np.ndarray): int64 labels ``(num_frames,)``, ``-1`` where
            unknown.
    """

    video_id: str
    frame_dir: str
    frame_names: list[str]
    phases: np.ndarray


@DATASETS.register_module()
class BaseVideoPhaseDataset:
    """Videos as folders of frames, with a phase for every frame.

    Expected files::

        <data_root>/<frame_dir>/<video>/*.jpg (or .png), ``fps`` per second
        <data_root>/<phase_dir>/<video>-phase.txt, ``annotation_fps`` rows
            per second, ``frame<TAB>phase``, see :func:`read_phase_file`

    Frames are sorted by name, numbers in names by value. The i-th image
    belongs to the i-th row with ``frame % (annotation_fps / fps) == 0``.
    Tools that extract frames often give a frame or two more or less than
    there are labels. With ``frame_count_policy='truncate'`` such a video is
    cut at the end to the shorter of the two if they differ by at most
    ``max_count_difference``, which is logged with the counts; a larger
    difference is an error. ``'error'`` accepts no difference.

    An item is a window of clips of ``clip_len`` frames, chosen by a
    :class:`WindowIndex` from a sampler; a plain ``int`` gives a whole video
    as one window. The last clip of a video is padded by repeating its last
    frame, after augmentation; padded frames have the label ``-1``. Images are
    read when an item is asked for, never before.

    Args:
        data_root (str | Path): Folder of the dataset.
        split (str | Sequence[int | str]): A name in ``SPLITS``, or the videos
            by number or name.
        clip_len (int): Frames of a clip. 1 for per-frame training.
        pipeline (Sequence): Transforms of a clip, see
            :class:`~mmssm.datasets.transforms.ClipPipeline`. Defaults to
            loading only.
        fps (int): Frames per second on disk. Defaults to 1.
        frame_dir (str): Defaults to ``'frames'``.
        phase_dir (str, optional): Defaults to ``'phase_annotations'``.
            ``None``: no labels, allowed with ``test_mode``.
        annotation_fps (int): Annotation rows per second, a multiple of
            ``fps``. Defaults to 25.
        frame_count_policy (str): ``'truncate'`` or ``'error'``, see above.
        max_count_difference (int): See above. Defaults to 2.
        video_template (str): Name of a video from its number. Defaults to
            ``'video{:02d}'``.
        phase_template (str): Name of an annotation file from the name of its
            video. Defaults to ``'{}-phase.txt'``.
        first_frame (int): Number of the first frame in annotation files.
            Defaults to 0.
        first_phase (int): Number of the first phase in annotation files that
            hold numbers. Defaults to 0.
        test_mode (bool): Whether videos without labels are accepted.
            Everything else is as in training. Defaults to False.
        metainfo (Mapping, optional): Adds to or replaces ``METAINFO``;
            ``classes`` (names in the order of their ids) must be in one of
            them.
        lazy_init (bool): Whether to look at the files only when first
            needed. Defaults to False.

    Raises:
        FileNotFoundError: If a folder or file is missing.
        TypeError: If ``split`` is neither a name nor a list of videos.
        ValueError: If an argument or a file is malformed.

    Example:
        >>> import tempfile
        >>> from mmssm.datasets import Cholec80Dataset
        >>> from mmssm.testing.sample_videos import make_tiny_videos
        >>> root = make_tiny_videos(tempfile.mkdtemp() + '/data')
        >>> dataset = Cholec80Dataset(root, split=[1, 2], clip_len=8)
        >>> dataset[0]['inputs'].shape[1:]
        torch.Size([8, 3, 32, 32])
    """

    METAINFO: dict = {}
    SPLITS: Mapping[str, Sequence[int]] = {}

    def __init__(
        self,
        data_root: str | Path,
        split: str | Sequence[int | str],
        clip_len: int,
        pipeline: Sequence = (dict(type='mmssm.LoadFrames'),),
        fps: int = 1,
        frame_dir: str = 'frames',
        phase_dir: str | None = 'phase_annotations',
        annotation_fps: int = 25,
        frame_count_policy: str = 'truncate',
        max_count_difference: int = 2,
        video_template: str = 'video{:02d}',
        phase_template: str = '{}-phase.txt',
        first_frame: int = 0,
        first_phase: int = 0,
        test_mode: bool = False,
        metainfo: Mapping | None = None,
        lazy_init: bool = False,
    ) -> None:
        for name, value in (('clip_len', clip_len), ('fps', fps)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f'`{name}` is {value!r}; expected an integer >= 1'
                )
        if annotation_fps < fps or annotation_fps % fps:
            raise ValueError(
                f'`annotation_fps` is {annotation_fps}; expected a multiple '
                f'of `fps` = {fps}, so that every frame has a row'
            )
        if frame_count_policy not in FRAME_COUNT_POLICIES:
            raise ValueError(
                f'`frame_count_policy` is {frame_count_policy!r}; expected '
                "'truncate' or 'error'"
            )
        if phase_dir is None and not test_mode:
            raise ValueError(
                '`phase_dir` is None: videos without labels can only be '
                'tested; set test_mode=True'
            )
        self.data_root = Path(data_root)
        self.clip_len = clip_len
        self.pipeline = ClipPipeline(pipeline)
        self.fps = fps
        self.frame_dir = frame_dir
        self.phase_dir = phase_dir
        self.annotation_fps = annotation_fps
        self.frame_count_policy = frame_count_policy
        self.max_count_difference = max_count_difference
        self.phase_template = phase_template
        self.first_frame = first_frame
        self.first_phase = first_phase
        self.test_mode = test_mode
        if not isinstance(split, (str, Iterable)):
            raise TypeError(
                f'`split` is {split!r}; expected the name of a split or a '
                'list of videos, such as [1, 2]'
            )
        self.split = split if isinstance(split, str) else list(split)
        self.video_ids = self._resolve_split(self.split, video_template)
        self._metainfo = self._load_metainfo(metainfo)
        self._videos: list[VideoInfo] | None = None
        self._frame_shape: torch.Size | None = None
        if not lazy_init:
            self.full_init()

    @property
    def metainfo(self) -> dict:
        """dict: ``classes``, ``palette``, ``fps``, ``split`` and more."""
        return copy.deepcopy(self._metainfo)

    @property
    def videos(self) -> list[VideoInfo]:
        """list[VideoInfo]: The videos in the order of the split."""
        self.full_init()
        return self._videos

    def full_init(self) -> None:
        """Read the annotations and list the frames, once."""
        if self._videos is not None:
            return
        videos, notes = [], []
        for video_id in self.video_ids:
            folder = self.data_root / self.frame_dir / video_id
            names = list_frames(folder)
            phases = self._read_phases(video_id, len(names))
            if len(names) != len(phases):
                notes.append(
                    f'{video_id} {len(names)} frames / {len(phases)} labels '
                    f'(first image {names[0]})'
                )
            length = min(len(names), len(phases))
            videos.append(
                VideoInfo(
                    video_id,
                    str(folder),
                    names[:length],
                    phases[:length],
                )
            )
        if notes:
            print_log(
                f'{type(self).__name__}: {len(notes)} of {len(videos)} '
                'videos differ in frames and labels and were cut to the '
                f'shorter at the end: {"; ".join(notes)}. If a first image '
                'is not the first frame of its video, all labels are shifted',
                logger='current',
                level=30,
            )
        self._videos = videos

    def __len__(self) -> int:
        return len(self.video_ids)

    def num_frames(self, video: int) -> int:
        """Return the number of frames of a video.

        Args:
            video (int): Index in the dataset.

        Returns:
            int: Frames that have a label.
        """
        return len(self.videos[video].frame_names)

    def num_clips(self, video: int) -> int:
        """Return the number of clips of a video, the padded one included.

        Args:
            video (int): Index in the dataset.

        Returns:
            int: ``ceil(num_frames / clip_len)``.
        """
        return -(-self.num_frames(video) // self.clip_len)

    def whole_video(self, video: int) -> WindowIndex:
        """Return the index of a whole video as one window.

        Args:
            video (int): Index in the dataset.

        Returns:
            WindowIndex: All its clips, belonging to no lane.
        """
        clips = (
            ClipIndex(video, clip, video)
            for clip in range(self.num_clips(video))
        )
        return WindowIndex(lane=-1, num_lanes=-1, clips=tuple(clips))

    def __getitem__(self, index: WindowIndex | int) -> dict:
        """Load a window of clips.

        Args:
            index (WindowIndex | int): From a sampler, or the index of a video
                to get all of it.

        Returns:
            dict: ``inputs``, uint8 RGB frames ``(num_clips, clip_len, 3,
            height, width)``, and ``data_samples``, a
            :class:`PhaseDataSample`. A window that belongs to no lane
            (``num_lanes`` -1) starts anew: its first clip counts as
            ``new_video`` wherever it lies.

        Raises:
            TypeError: If ``index`` is something else.
        """
        if not isinstance(index, WindowIndex):
            if isinstance(index, (bool, str)) or not hasattr(
                index, '__index__'
            ):
                raise TypeError(
                    f'`index` is {index!r}; expected a WindowIndex or the '
                    'number of a video'
                )
            number = int(index)
            if not -len(self) <= number < len(self):
                raise IndexError(
                    f'video {number} of a dataset of {len(self)} videos'
                )
            index = self.whole_video(number % len(self))
        clips = [self._load_clip(clip) for clip in index.clips]
        shapes = {clip.shape[1:] for clip in clips if clip is not None}
        if len(shapes) > 1:
            names = [self.videos[c.video].video_id for c in index.clips]
            raise ValueError(
                f'the clips of {names} come out of the pipeline in sizes '
                f'{sorted(tuple(s[1:]) for s in shapes)} (height, width); '
                'expected one size. End the pipeline with a crop or resize '
                'to a fixed (height, width)'
            )
        shape = shapes.pop() if shapes else self._empty_shape()
        # also a clip's shape: empty windows must match it
        self._frame_shape = shape
        inputs = torch.zeros(
            (len(clips), self.clip_len, *shape), dtype=torch.uint8
        )
        labels = torch.full(
            (len(clips), self.clip_len), IGNORE_INDEX, dtype=torch.int64
        )
        meta = dict(
            lane=index.lane,
            num_lanes=index.num_lanes,
            video_id=[],
            frame_idx=[],
            num_frames=[],
            new_video=[],
            end_of_video=[],
        )
        for i, (clip, frames) in enumerate(
            zip(index.clips, clips, strict=True)
        ):
            empty = frames is None
            length = 0 if empty else len(frames)
            start = clip.clip * self.clip_len
            if not empty:
                inputs[i, :length] = frames
                inputs[i, length:] = frames[-1]
                phases = self.videos[clip.video].phases
                labels[i, :length] = torch.from_numpy(
                    phases[start : start + length]
                )
            first = clip.clip == 0 or (index.num_lanes == -1 and i == 0)
            meta['video_id'].append(
                '' if empty else self.videos[clip.video].video_id
            )
            meta['frame_idx'].append(0 if empty else start)
            meta['num_frames'].append(length)
            meta['new_video'].append(not empty and first)
            meta['end_of_video'].append(
                not empty and clip.clip == self.num_clips(clip.video) - 1
            )
        data_sample = PhaseDataSample()
        # not `metainfo=meta`, which makes a deep copy of it
        for name, value in meta.items():
            data_sample.set_field(value, name, field_type='metainfo')
        data_sample.gt_phase = labels
        return dict(inputs=inputs, data_samples=data_sample)

    def _load_clip(self, clip: ClipIndex) -> torch.Tensor | None:
        """Return the real frames of a clip, ``None`` for an empty clip."""
        if clip.video < 0:
            return None
        video = self.videos[clip.video]
        start = clip.clip * self.clip_len
        names = video.frame_names[start : start + self.clip_len]
        if clip.clip < 0 or not names:
            raise IndexError(
                f'clip {clip.clip} of {video.video_id}, which has '
                f'{self.num_clips(clip.video)} clips of {self.clip_len}'
            )
        results = self.pipeline(
            dict(
                frame_paths=[f'{video.frame_dir}/{name}' for name in names],
                video_id=video.video_id,
                clip=clip.clip,
                frame_idx=start,
                seed=clip.seed,
            )
        )
        frames = results['frames']
        if frames.dtype != torch.uint8 or len(frames) != len(names):
            raise ValueError(
                f'the pipeline gave {frames.dtype} {tuple(frames.shape)} for '
                f'{len(names)} frames of {video.video_id}; expected uint8 '
                '(num_frames, 3, height, width). Normalising is the task of '
                "the model's data_preprocessor"
            )
        return frames

    def _empty_shape(self) -> torch.Size:
        """Return the shape of a frame for a window without any."""
        if self._frame_shape is None:
            self._frame_shape = self._load_clip(ClipIndex(0, 0, 0)).shape[1:]
        return self._frame_shape

    def _resolve_split(
        self, split: str | Sequence[int | str], template: str
    ) -> list[str]:
        if isinstance(split, str):
            if split not in self.SPLITS:
                raise ValueError(
                    f'`split` is {split!r}; expected one of '
                    f'{sorted(self.SPLITS)} or a list of videos'
                )
            split = self.SPLITS[split]
        for video in split:
            is_number = hasattr(video, '__index__')
            if isinstance(video, bool) or not (
                is_number or isinstance(video, str)
            ):
                raise TypeError(
                    f'`split` lists {video!r}; expected numbers or names of '
                    'videos'
                )
        names = [
            video if isinstance(video, str) else template.format(video)
            for video in split
        ]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if not names or repeated:
            raise ValueError(
                f'`split` lists {repeated} more than once'
                if repeated
                else '`split` is empty; expected at least one video'
            )
        return names

    def _load_metainfo(self, metainfo: Mapping | None) -> dict:
        result = copy.deepcopy({**self.METAINFO, **(metainfo or {})})
        classes = result.get('classes')
        if not classes:
            raise ValueError(
                f'{type(self).__name__} has no class names; set '
                "metainfo=dict(classes=('name of phase 0', ...))"
            )
        result['classes'] = tuple(classes)
        if 'palette' not in result:
            size = len(DEFAULT_PALETTE)
            result['palette'] = [
                DEFAULT_PALETTE[i % size] for i in range(len(classes))
            ]
        result['fps'] = self.fps
        result['split'] = self.split
        result['dataset_type'] = type(self).__name__
        return result

    def _read_phases(self, video_id: str, num_frames: int) -> np.ndarray:
        if self.phase_dir is None:
            return np.full(num_frames, IGNORE_INDEX, dtype=np.int64)
        path = (
            self.data_root
            / self.phase_dir
            / self.phase_template.format(video_id)
        )
        phases = read_phase_file(
            path,
            self._metainfo['classes'],
            self.annotation_fps // self.fps,
            self.first_frame,
            self.first_phase,
        )
        difference = abs(num_frames - len(phases))
        allowed = (
            self.max_count_difference
            if self.frame_count_policy == 'truncate'
            else 0
        )
        if difference > allowed:
            raise ValueError(
                f'{video_id}: {num_frames} frames in '
                f'{self.data_root / self.frame_dir / video_id} but '
                f'{len(phases)} labels in {path} (one of '
                f'{self.annotation_fps // self.fps} rows at annotation_fps '
                f'{self.annotation_fps}, fps {self.fps}); a difference of '
                f'{allowed} is accepted (frame_count_policy '
                f'{self.frame_count_policy!r}). Check both rates, or extract '
                'the frames again'
            )
        return phases
