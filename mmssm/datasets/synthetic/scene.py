"""Draw the video of a sample operation."""

from collections.abc import Iterator

import cv2
import numpy as np

from mmssm.datasets.synthetic.phase_script import (
    PHASE_LOOKS,
    TOOLS,
    PhaseScript,
)
from mmssm.datasets.synthetic.tools import DRAW_TOOL, ToolPainter, draw_helper
from mmssm.datasets.synthetic.tracks import (
    episodes,
    on_off_intervals,
    presence,
    smooth_track,
)

TICKS_PER_SECOND = 5
"""Pictures per second of the videos; every fifth one is a 1-fps frame."""

# the tissue map is this much wider than the view, for the camera to move
_MAP_SCALE = 1.7


def _noise_map(
    rng: np.random.Generator, size: int, cells: int, octaves: int = 3
) -> np.ndarray:
    """Draw smooth noise around 0, float32 ``(size, size)``, about -1..1."""
    total = np.zeros((size, size), dtype=np.float32)
    weight = 1.0
    for octave in range(octaves):
        number = max(2, cells * 2**octave)
        grid = rng.normal(0, 1, (number, number)).astype(np.float32)
        total += weight * cv2.resize(
            grid, (size, size), interpolation=cv2.INTER_CUBIC
        )
        weight *= 0.5
    return total / max(float(np.abs(total).max()), 1e-6)


def _step(value: np.ndarray, sharpness: float) -> np.ndarray:
    """Map values to 0..1 around 0, ``(..., 1)`` for blending colours."""
    return np.clip(0.5 + value * sharpness, 0, 1)[..., None]


class SurgicalScene:
    """Everything that is drawn in one video.

    A round field of view on tissue that differs from video to video in
    texture, hue and light; the camera drifts and turns; smoke, blood, blur
    and flicker come and go in any phase; the main tool of each phase enters
    at its first second, leaves and returns; a helper's grasper may be there
    at any time. All of it is fixed by ``script`` and ``seed``.

    Args:
        script (PhaseScript): The phases.
        seed (np.random.SeedSequence): Source of all randomness.
        size (int): Side of the pictures in pixels. Defaults to 64.
    """

    def __init__(
        self,
        script: PhaseScript,
        seed: np.random.SeedSequence,
        size: int = 64,
    ) -> None:
        self.script = script
        self.size = size
        # small pictures are drawn twice as large for smooth edges
        self.canvas = size * (2 if size < 160 else 1)
        self.num_ticks = len(script) * TICKS_PER_SECOND
        times = np.arange(self.num_ticks) / TICKS_PER_SECOND
        tissue, lens, camera, nuisance, tools = (
            np.random.default_rng(child) for child in seed.spawn(5)
        )
        self._paint_tissue(tissue)
        self._grind_lens(lens)
        self._move_camera(camera, times)
        self._plan_nuisances(nuisance, times)
        self._plan_tools(tools, times)

    def _paint_tissue(self, rng: np.random.Generator) -> None:
        size = int(self.canvas * _MAP_SCALE)
        y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j].astype(
            np.float32
        )
        fine = _noise_map(rng, size, 10)
        flesh = np.array((178, 84, 78), dtype=np.float32)
        flesh = flesh + rng.normal(0, 8, 3)
        image = flesh * (1 + 0.16 * _noise_map(rng, size, 4)[..., None])
        # folds of fat, the liver's edge, the gallbladder, vessels
        fat = _step(_noise_map(rng, size, 3) - rng.uniform(0.0, 0.35), 3)
        image += 0.8 * fat * (np.array((214, 170, 92)) - image)
        slope, height = rng.uniform(-0.5, 0.5), rng.uniform(-0.7, -0.15)
        edge = height + slope * x + 0.12 * _noise_map(rng, size, 4) - y
        liver = _step(edge, 8)
        image += 0.9 * liver * (np.array((104, 40, 38)) - image)
        angle = rng.uniform(0, np.pi)
        cx, cy = rng.uniform(-0.35, 0.35, 2)
        along = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle)
        across = (y - cy) * np.cos(angle) - (x - cx) * np.sin(angle)
        inside = 1 - (along / 0.5) ** 2 - (across / 0.24) ** 2
        bladder = _step(inside + 0.3 * fine, 3)
        shine = 1 + 0.3 * np.clip(inside, 0, 1)[..., None]
        target = np.array((168, 138, 98)) + rng.normal(0, 6, 3)
        image += 0.8 * bladder * (target * shine - image)
        ridge = np.abs(_noise_map(rng, size, 3, octaves=2))
        vessels = _step(0.035 - ridge, 30)
        image += 0.5 * vessels * (np.array((128, 26, 30)) - image)
        image *= 1 + 0.14 * fine[..., None]
        # wet highlights
        gloss = _noise_map(rng, size, 14, octaves=2)
        threshold = np.quantile(gloss, 0.975)
        image += _step(gloss - threshold - 0.08, 8) * 130
        tint = 1 + rng.normal(0, 0.025, 3)
        image = np.clip(image * tint, 0, 255).astype(np.uint8)
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
        hue = hsv[..., 0].astype(np.int16) + round(rng.normal(0, 2))
        hsv[..., 0] = hue % 180
        gain = rng.uniform(0.85, 1.15)
        hsv[..., 1] = np.clip(hsv[..., 1] * gain, 0, 255)
        self._tissue = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
        stain = _noise_map(rng, size, 4)
        self._blood = _step(stain - np.quantile(stain, 0.9), 6)[..., 0]

    def _grind_lens(self, rng: np.random.Generator) -> None:
        """Set the round field of view and the light of the endoscope."""
        size = self.canvas
        y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j].astype(
            np.float32
        )
        cx, cy = rng.normal(0, 0.025, 2)
        radius = np.hypot(x - cx, y - cy)
        field = np.clip((rng.uniform(0.97, 1.04) - radius) * size / 6, 0, 1)
        lx, ly = rng.normal(0, 0.15, 2)
        falloff = rng.uniform(0.3, 0.55)
        light = 1.12 - falloff * ((x - lx) ** 2 + (y - ly) ** 2)
        warmth = 1 + rng.normal(0, 0.03, 3)
        mask = (field * light)[..., None] * warmth
        self._lens = np.clip(mask, 0, None).astype(np.float32)
        self._smoke_map = np.clip(
            0.75 + 0.5 * _noise_map(rng, 2 * size, 4), 0, 1
        ).astype(np.float32)
        self._grain = rng.normal(0, 2.5, (2 * size, 2 * size, 1)).astype(
            np.float32
        )

    def _move_camera(self, rng: np.random.Generator, times: np.ndarray):
        def wander(slow: float, fast: float) -> np.ndarray:
            return smooth_track(rng, times, 40, slow) + smooth_track(
                rng, times, 4, fast
            )

        # in half sides of the view
        limit = _MAP_SCALE - 1
        self._shift = np.stack(
            [np.clip(wander(0.3, 0.07), -limit, limit) for _ in range(2)], 1
        )
        self._turn = rng.uniform(-0.3, 0.3) + wander(0.12, 0.03)
        self._zoom = np.exp(np.clip(wander(0.1, 0.02), -0.25, 0.3))

    def _plan_nuisances(self, rng: np.random.Generator, times: np.ndarray):
        self._smoke = 0.55 * episodes(rng, times, gap=60, length=12, ramp=4)
        self._smoke_shift = np.stack(
            [smooth_track(rng, times, 5, 0.2) for _ in range(2)], 1
        )
        self._bleeding = 0.85 * episodes(rng, times, gap=70, length=35, ramp=6)
        self._blur = 1.0 * episodes(rng, times, gap=90, length=4, ramp=1)
        self._gain = (
            rng.uniform(0.85, 1.1)
            * (1 + smooth_track(rng, times, 25, 0.07))
            * (1 + smooth_track(rng, times, 0.6, 0.025))
        )
        self._grain_shift = rng.integers(0, self.canvas, (self.num_ticks, 2))

    def _plan_tools(self, rng: np.random.Generator, times: np.ndarray):
        # operator and assistant keep their sides during a video
        side = rng.choice((-1, 1))
        self._light = rng.uniform(0.85, 1.1)
        self._main = [
            self._plan_tool(
                rng,
                times,
                on_off_intervals(rng, run.start, run.stop, 25, 7),
                direction=0 if side < 0 else np.pi,
            )
            for run in self.script.runs
        ]
        absent_first = int(rng.exponential(40))
        intervals = on_off_intervals(
            rng, absent_first, len(self.script), mean_on=30, mean_off=45
        )
        self._helper = self._plan_tool(
            rng, times, intervals, direction=np.pi if side < 0 else 0
        )

    @staticmethod
    def _plan_tool(
        rng: np.random.Generator,
        times: np.ndarray,
        intervals: list[tuple[int, int]],
        direction: float,
    ) -> dict[str, np.ndarray]:
        angle = direction + rng.uniform(-0.9, 0.9)
        reach = rng.uniform(0.0, 0.35)
        tip = [
            reach * np.cos(angle) + smooth_track(rng, times, 4, 0.16),
            reach * np.sin(angle) + smooth_track(rng, times, 4, 0.16),
        ]
        jitter = [smooth_track(rng, times, 0.8, 0.025) for _ in range(2)]
        return dict(
            presence=presence(times, intervals),
            angle=angle + smooth_track(rng, times, 6, 0.12),
            tip=np.clip(np.stack(tip, 1), -0.5, 0.5) + np.stack(jitter, 1),
            scale=np.full(len(times), rng.uniform(0.9, 1.2)),
            opening=np.clip(0.5 + smooth_track(rng, times, 2, 0.4), 0, 1),
        )

    def draw(self, tick: int) -> np.ndarray:
        """Draw one picture.

        Args:
            tick (int): Its number, ``TICKS_PER_SECOND`` to a second.

        Returns:
            np.ndarray: uint8 RGB ``(size, size, 3)``.
        """
        picture = self._draw_tissue(tick)
        self._draw_tool(picture, tick, self._helper, draw_helper)
        # the old tool slides out while the new one slides in
        second = tick / TICKS_PER_SECOND
        for run, track in zip(self.script.runs, self._main, strict=True):
            if run.start - 1 <= second <= run.stop:
                name = TOOLS[PHASE_LOOKS[run.phase]]
                self._draw_tool(picture, tick, track, DRAW_TOOL[name])
        return self._expose(picture, tick)

    def frames(self, step: int = 1) -> Iterator[np.ndarray]:
        """Draw every ``step``-th picture of the video.

        Args:
            step (int): ``TICKS_PER_SECOND`` for 1-fps frames. Defaults to 1.

        Yields:
            np.ndarray: uint8 RGB ``(size, size, 3)``.
        """
        for tick in range(0, self.num_ticks, step):
            yield self.draw(tick)

    def _draw_tissue(self, tick: int) -> np.ndarray:
        size = self.canvas
        cos = np.cos(self._turn[tick]) / self._zoom[tick]
        sin = np.sin(self._turn[tick]) / self._zoom[tick]
        middle = (self._tissue.shape[0] - 1) / 2
        dx, dy = middle + self._shift[tick] * size / 2
        half = (size - 1) / 2
        matrix = np.array(
            [
                [cos, -sin, dx - half * (cos - sin)],
                [sin, cos, dy - half * (sin + cos)],
            ]
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        options = dict(flags=flags, borderMode=cv2.BORDER_REFLECT_101)
        picture = cv2.warpAffine(self._tissue, matrix, (size, size), **options)
        level = self._bleeding[tick]
        if level > 0.02:
            stain = cv2.warpAffine(
                self._blood, matrix, (size, size), **options
            )
            stain = (level * stain)[..., None]
            red = np.array((112, 6, 12), dtype=np.float32)
            picture = (picture + stain * (red - picture)).astype(np.uint8)
        return picture

    def _draw_tool(self, picture, tick: int, track: dict, draw) -> None:
        level = track['presence'][tick]
        if level <= 0:
            return
        angle = track['angle'][tick]
        # slide along the shaft until the tip is out of view
        away = 2.2 * (1 - level)
        tip = track['tip'][tick] - away * np.array(
            (np.cos(angle), np.sin(angle))
        )
        paint = ToolPainter(
            picture, tip, angle, track['scale'][tick], self._light
        )
        draw(paint, track['opening'][tick])

    def _expose(self, picture: np.ndarray, tick: int) -> np.ndarray:
        """Add smoke, light, blur and grain and shrink to the final size."""
        size = self.canvas
        image = picture.astype(np.float32)
        level = self._smoke[tick]
        if level > 0.02:
            x, y = (0.5 + self._smoke_shift[tick]).clip(0, 1) * size
            density = self._smoke_map[int(y) :, int(x) :][:size, :size]
            density = (level * density)[..., None]
            image += density * (196 - image)
        image *= self._lens * np.float32(self._gain[tick])
        sigma = self._blur[tick] * size / 64
        if sigma > 0.3:
            image = cv2.GaussianBlur(image, (0, 0), sigma)
        x, y = self._grain_shift[tick]
        image += self._grain[y : y + size, x : x + size]
        image = np.clip(image, 0, 255).astype(np.uint8)
        if size == self.size:
            return image
        side = (self.size, self.size)
        return cv2.resize(image, side, interpolation=cv2.INTER_AREA)
