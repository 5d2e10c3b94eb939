"""Training a student to have the features of a frozen teacher."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModel, is_model_wrapper
from torch import Tensor, nn

from mmssm.models.distillers.losses import FeatureL1Loss
from mmssm.models.distillers.shared_weights import copy_shared_weights
from mmssm.models.distillers.taps import Taps, pair_taps, record_outputs
from mmssm.models.recognizers import PhaseRecognizer
from mmssm.registry import MODELS
from mmssm.utils.conversion import load_weights

Outputs = dict[str, list[Tensor]]


class _Term(NamedTuple):
    """Pairs of modules and the name of the loss between them."""

    name: str
    pairs: list[tuple[str, str]]


@MODELS.register_module()
class FeatureDistiller(BaseModel):
    """A student that also learns the features of a frozen teacher::

        loss = loss of the task + loss_weight * mean over layers of
               mean |feature of the student - feature of the teacher|

    Features are the outputs of modules chosen by name: by default of all
    mixers, after their output projection. Student and teacher are any models
    of mmpretrain, mmseg, mmdet or mmssm that take the same inputs; the
    teacher may also be a bare backbone. In the modes 'predict' and 'tensor'
    the distiller is the student.

    The teacher is always in evaluation mode and without gradients. It is no
    submodule: its weights are neither in checkpoints nor in the optimizer,
    and a data-parallel wrapper does not see it. The weights of the student
    are under ``student.`` in a checkpoint;
    ``tools/model_converters/extract_student.py`` makes a plain checkpoint of
    it.

    Args:
        student (dict or BaseModel): The model to train.
        teacher (dict or nn.Module): The model to learn from. A module is
            frozen in place.
        teacher_ckpt (str, optional): Local file with all weights of the
            teacher. Without it the config of the teacher needs an
            ``init_cfg``. They are loaded by :meth:`init_weights`, or before
            the first loss.
        taps (str, Sequence[str] or Mapping[str, str], optional): Modules
            whose outputs are compared: patterns such as
            ``'backbone.layers.*.mixer'``, or a map from patterns of the
            student to patterns of the teacher; see :func:`pair_taps`.
            Default: all mixers.
        loss_weight (float): Weight of the feature loss. Default: 0.06, the
            paper's best. Its effect depends on the scale of the features.
            With 0 and no extra losses the teacher does not run: the student
            may start from it all the same.
        extra_losses (Sequence[dict]): More losses, each with a ``name``,
            its own ``taps`` and the config of a ``loss`` that is called with
            an output of the student and one of the teacher, such as
            ``dict(name='logits', taps='head.fc',
            loss=dict(type='mmssm.SoftTargetLoss'))``. Default: none.
        init_student_from_teacher (bool): Whether :meth:`init_weights` copies
            to the student all tensors of the teacher that have the same name
            and shape: all but the operator. Default: False.
        data_preprocessor (dict, optional): That of the student; mmengine
            fills in what a config has at its top level.
        init_cfg (dict, optional): mmengine initialisation config.

    Raises:
        TypeError: If the student is no ``BaseModel``.
        ValueError: If there are no weights for the teacher, if taps do not
            fit the models, or if losses have one name.

    Source: TCP-SSM (arXiv 2605.11563), equation 15. The paper compares the
    output of each scan before the gate, which kernels that gate do not have;
    ``taps='backbone.layers.*.mixer.*_scan'`` compares each scan after it.
    Weights of the loss do not carry over from one to the other.
    """

    def __init__(
        self,
        student: dict | BaseModel,
        teacher: dict | nn.Module,
        teacher_ckpt: str | None = None,
        taps: Taps | None = None,
        loss_weight: float = 6e-2,
        extra_losses: Sequence[dict] = (),
        init_student_from_teacher: bool = False,
        data_preprocessor: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        student = _build_student(student, data_preprocessor)
        self_made = isinstance(teacher, Mapping)
        if self_made and not (teacher_ckpt or teacher.get('init_cfg')):
            raise ValueError(
                '`teacher` has no weights: give `teacher_ckpt`, a local '
                'file, or an `init_cfg` in the config of the teacher'
            )
        if self_made:
            teacher = MODELS.build(teacher)
        super().__init__(student.data_preprocessor, init_cfg)
        self.student = student
        while is_model_wrapper(teacher):
            teacher = teacher.module
        # In a tuple, so that torch does not make it a submodule.
        self._teacher = (teacher.requires_grad_(False).eval(),)
        self.teacher_ckpt = teacher_ckpt
        self._teacher_needs_weights = self_made or teacher_ckpt is not None
        self.init_student_from_teacher = init_student_from_teacher
        self.feature_pairs = pair_taps(student, teacher, taps)
        self.feature_l1 = FeatureL1Loss()
        self.loss_weight = loss_weight
        self.extra_losses = nn.ModuleDict()
        self._terms = [self._add_loss(**extra) for extra in extra_losses]

    def _add_loss(self, name: str, taps: Taps, loss: dict) -> _Term:
        if name in self.extra_losses:
            raise ValueError(
                f'`extra_losses` has two losses of the name {name!r}'
            )
        self.extra_losses[name] = MODELS.build(loss)
        return _Term(name, pair_taps(self.student, self.teacher, taps))

    @property
    def teacher(self) -> nn.Module:
        """The frozen teacher."""
        return self._teacher[0]

    def init_weights(self) -> None:
        """Initialise the student, load the teacher, copy what they share."""
        super().init_weights()
        self._load_teacher()
        if not self.init_student_from_teacher:
            return
        shared = copy_shared_weights(self.student, self.teacher)
        print_log(
            f'the student starts with {len(shared.copied)} of its '
            f'{shared.total} tensors from the teacher',
            logger='current',
        )

    def _load_teacher(self) -> None:
        if not self._teacher_needs_weights:
            return
        if self.teacher_ckpt is None:
            self.teacher.init_weights()
        else:
            weights = load_weights(self.teacher_ckpt)
            try:
                self.teacher.load_state_dict(weights)
            except RuntimeError as error:
                raise ValueError(
                    f'`teacher_ckpt` {self.teacher_ckpt} does not fit the '
                    f'teacher: {error}'
                ) from error
        self._teacher_needs_weights = False

    def train(self, mode: bool = True) -> 'FeatureDistiller':
        """Set the mode of the student; the teacher stays in evaluation."""
        super().train(mode)
        self.teacher.eval()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> 'FeatureDistiller':
        # The teacher follows to devices and dtypes.
        super()._apply(fn, recurse)
        self.teacher._apply(fn, recurse)
        return self

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        """Run the student; in mode 'loss' the teacher too.

        Args:
            inputs (Any): As the student takes them.
            data_samples (Any): As the student takes them.
            mode (str): 'loss', 'predict' or 'tensor'.

        Returns:
            Any: What the student returns; losses also have
            ``loss_distill_feature``, one ``loss_distill_<name>`` for each
            extra loss, and for the log ``feature_l1``, without its weight.
        """
        if mode != 'loss':
            return self.student(inputs, data_samples, mode=mode)
        return self.loss(inputs, data_samples)

    def loss(self, inputs: Any, data_samples: Any) -> dict[str, Any]:
        """Compute the losses of the task and those of the features.

        Args:
            inputs (Any): As the student takes them.
            data_samples (Any): As the student takes them.

        Returns:
            dict: See :meth:`forward`.

        Raises:
            ValueError: If modules that are compared give outputs of
                different shapes, or run a different number of times.
        """
        self._load_teacher()
        if not self.loss_weight and not self._terms:
            return self.student(inputs, data_samples, mode='loss')
        theirs = self._run_teacher(inputs, data_samples)
        names = [ours for ours, _ in self._all_pairs()]
        with record_outputs(self.student, names) as ours:
            losses = dict(self.student(inputs, data_samples, mode='loss'))
        return {**losses, **self._distillation_losses(ours, theirs)}

    def compare_features(self, inputs: Any, data_samples: Any = None) -> float:
        """Mean over the layers of the L1 distance to the teacher.

        Args:
            inputs (Any): As the student takes them.
            data_samples (Any): As the student takes them, where its mode
                'tensor' needs them.

        Returns:
            float: The feature loss without its weight, in the current mode
            of the student.
        """
        self._load_teacher()
        with torch.no_grad():
            theirs = self._run_teacher(inputs, data_samples)
            names = [ours for ours, _ in self.feature_pairs]
            with record_outputs(self.student, names) as ours:
                self.student(inputs, data_samples, mode='tensor')
            pairs = self.feature_pairs
            return float(_mean_loss(self.feature_l1, pairs, ours, theirs))

    def _all_pairs(self) -> list[tuple[str, str]]:
        extra = (pair for term in self._terms for pair in term.pairs)
        return [*self.feature_pairs, *extra]

    @torch.no_grad()
    def _run_teacher(self, inputs: Any, data_samples: Any) -> Outputs:
        teacher = self.teacher
        names = [theirs for _, theirs in self._all_pairs()]
        with record_outputs(teacher, names) as outputs:
            if not isinstance(teacher, BaseModel):
                teacher(inputs)
            elif isinstance(teacher, PhaseRecognizer):
                # Only in this mode lanes go on where they were.
                teacher(inputs, data_samples, mode='loss')
            else:
                teacher(inputs, data_samples, mode='tensor')
        return outputs

    def _distillation_losses(
        self, ours: Outputs, theirs: Outputs
    ) -> dict[str, Tensor]:
        l1 = _mean_loss(self.feature_l1, self.feature_pairs, ours, theirs)
        losses = dict(
            loss_distill_feature=self.loss_weight * l1,
            feature_l1=l1.detach(),
        )
        for name, pairs in self._terms:
            loss = self.extra_losses[name]
            losses[f'loss_distill_{name}'] = _mean_loss(
                loss, pairs, ours, theirs
            )
        return losses


def _build_student(
    student: dict | BaseModel, data_preprocessor: dict | None
) -> BaseModel:
    if isinstance(student, Mapping):
        student = copy.deepcopy(student)
        if data_preprocessor is not None:
            student.setdefault('data_preprocessor', data_preprocessor)
        student = MODELS.build(student)
    if is_model_wrapper(student):
        raise TypeError(
            '`student` is in a data-parallel wrapper; wrap the distiller '
            'instead, or its own losses would not be reduced'
        )
    if not isinstance(student, BaseModel):
        raise TypeError(
            f'`student` is {type(student).__name__}; expected a BaseModel of '
            'mmengine (a classifier, segmentor, detector or recognizer)'
        )
    return student


def _mean_loss(
    loss: nn.Module,
    pairs: list[tuple[str, str]],
    ours: Outputs,
    theirs: Outputs,
) -> Tensor:
    """Mean over the pairs, and over the calls of each."""
    values = []
    for name, other in pairs:
        _check_pair(name, other, ours[name], theirs[other])
        calls = [
            loss(student, teacher)
            for student, teacher in zip(ours[name], theirs[other], strict=True)
        ]
        values.append(torch.stack(calls).mean())
    return torch.stack(values).mean()


def _check_pair(
    name: str, other: str, ours: list[Tensor], theirs: list[Tensor]
) -> None:
    if not ours or len(ours) != len(theirs):
        raise ValueError(
            f'{name!r} of the student ran {len(ours)} times, {other!r} of '
            f'the teacher {len(theirs)} times; expected equal numbers, at '
            'least 1'
        )
    shapes = [
        (tuple(a.shape), tuple(b.shape))
        for a, b in zip(ours, theirs, strict=True)
    ]
    for student, teacher in shapes:
        if student != teacher:
            raise ValueError(
                f'{name!r} of the student gives shape {student}, {other!r} '
                f'of the teacher {teacher}; expected one shape. Choose '
                'other modules with `taps`'
            )
