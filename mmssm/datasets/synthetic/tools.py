"""Shapes of the instruments.

The main tools differ in shape and in colours that tissue never has, so that
a small network tells them apart in light and tissue it has not seen.

Coordinates of a tool: x along the shaft towards the tip, the tip at 0 and
the shaft at negative x, y to its left. The unit is half the picture's side.
"""

import cv2
import numpy as np

Color = tuple[int, int, int]

_SHIFT = 4  # fractional bits of cv2's drawing functions


def _shade(color: Color, factor: float) -> Color:
    return tuple(int(np.clip(c * factor, 0, 255)) for c in color)


def _arc(
    center: tuple[float, float],
    radii: tuple[float, float],
    start: float,
    stop: float,
    number: int = 12,
) -> np.ndarray:
    """Return points of an arc, angles in degrees ``(number, 2)``."""
    angles = np.radians(np.linspace(start, stop, number))
    return np.stack(
        [
            center[0] + radii[0] * np.cos(angles),
            center[1] + radii[1] * np.sin(angles),
        ],
        axis=1,
    )


class ToolPainter:
    """Draw one tool into a picture.

    Args:
        picture (np.ndarray): uint8 RGB ``(size, size, 3)``, drawn into.
        tip (tuple[float, float]): Position of the tip, -1..1.
        angle (float): Direction from shaft to tip in radians.
        scale (float): Size of the tool, about 1.
        light (float): Brightness of its metal, about 1.
    """

    def __init__(
        self,
        picture: np.ndarray,
        tip: tuple[float, float],
        angle: float,
        scale: float,
        light: float,
    ) -> None:
        self.picture = picture
        self.light = light
        half = picture.shape[0] / 2
        turn = np.array(
            [
                [np.cos(angle), np.sin(angle)],
                [-np.sin(angle), np.cos(angle)],
            ]
        )
        self._matrix = turn * scale * half
        self._offset = half * (1 + np.asarray(tip))

    def polygon(self, points: np.ndarray | list, color: Color) -> None:
        """Fill a polygon given in tool coordinates ``(number, 2)``."""
        pixels = np.asarray(points, dtype=np.float64) @ self._matrix
        pixels = np.rint((pixels + self._offset) * (1 << _SHIFT))
        cv2.fillPoly(
            self.picture,
            [pixels.astype(np.int32)],
            _shade(color, self.light),
            lineType=cv2.LINE_AA,
            shift=_SHIFT,
        )

    def shaft(self, width: float, stop: float, color: Color) -> None:
        """Draw the shaft, shaded as a cylinder, up to x = ``stop``."""
        start = -4.0
        for low, high, factor in (
            (-1.0, 1.0, 0.55),
            (-0.75, 0.8, 1.0),
            (0.15, 0.55, 1.35),
        ):
            self.polygon(
                [
                    (start, low * width),
                    (stop, low * width),
                    (stop, high * width),
                    (start, high * width),
                ],
                _shade(color, factor),
            )


def draw_grasper(paint: ToolPainter, opening: float) -> None:
    """Main grasper: green sleeve, two wide fenestrated jaws of bright metal.

    Args:
        paint (ToolPainter): Where to draw.
        opening (float): How far the jaws are open, 0..1.
    """
    steel = (196, 200, 206)
    paint.shaft(0.1, -0.42, (52, 140, 104))
    angle = 0.12 + 0.3 * opening
    for side in (1, -1):
        turn = np.array(
            [
                [np.cos(angle), side * np.sin(angle)],
                [-side * np.sin(angle), np.cos(angle)],
            ]
        )
        jaw = np.array(
            [(0, 0.0), (0, 0.1), (0.2, 0.15), (0.42, 0.1), (0.5, 0.02)]
        ) * (1, side)
        hole = _arc((0.24, 0.075 * side), (0.12, 0.033), 0, 330)
        paint.polygon(jaw @ turn + (-0.45, 0), _shade(steel, 1.1))
        paint.polygon(hole @ turn + (-0.45, 0), (84, 40, 42))
    paint.polygon(_arc((-0.44, 0), (0.06, 0.06), 0, 330), _shade(steel, 0.7))


def draw_helper(paint: ToolPainter, opening: float) -> None:
    """Assistant's grasper: thin, dark, closed; its jaws hold tissue.

    Args:
        paint (ToolPainter): Where to draw.
        opening (float): Unused, kept for a common signature.
    """
    dark = (74, 78, 88)
    paint.shaft(0.055, -0.28, dark)
    paint.polygon(
        [(-0.3, -0.05), (-0.05, -0.035), (0, 0), (-0.05, 0.035), (-0.3, 0.05)],
        _shade(dark, 1.5),
    )
    paint.polygon([(-0.26, -0.006), (0, 0), (-0.26, 0.006)], (30, 30, 34))


def draw_hook(paint: ToolPainter, opening: float) -> None:
    """Electrocautery hook: black shaft, white sleeve, thin bent wire.

    Args:
        paint (ToolPainter): Where to draw.
        opening (float): Unused, kept for a common signature.
    """
    paint.shaft(0.08, -0.42, (38, 38, 44))
    for low, high, factor in ((-1, 1, 0.75), (-0.7, 0.8, 1.0)):
        paint.polygon(
            [
                (-0.46, low * 0.085),
                (-0.2, low * 0.06),
                (-0.2, high * 0.06),
                (-0.46, high * 0.085),
            ],
            _shade((238, 232, 214), factor),
        )
    wire = (208, 206, 204)
    paint.polygon(
        [
            (-0.22, -0.03),
            (0.03, -0.03),
            (0.05, 0.2),
            (-0.01, 0.22),
            (-0.03, 0.03),
            (-0.22, 0.03),
        ],
        wire,
    )


def draw_clipper(paint: ToolPainter, opening: float) -> None:
    """Clip applier: thick purple body, two blunt jaws and a bright clip.

    Args:
        paint (ToolPainter): Where to draw.
        opening (float): How far the jaws are open, 0..1.
    """
    polymer = (168, 52, 184)
    paint.shaft(0.14, -0.4, (150, 158, 168))
    paint.polygon(
        [(-0.62, -0.15), (-0.38, -0.15), (-0.38, 0.15), (-0.62, 0.15)], polymer
    )
    gap = 0.06 + 0.07 * opening
    for side in (1, -1):
        jaw = np.array(
            [
                (-0.42, 0.02),
                (-0.3, gap),
                (-0.02, gap),
                (0.0, gap + 0.04),
                (-0.04, gap + 0.1),
                (-0.34, gap + 0.1),
                (-0.42, 0.13),
            ]
        ) * (1, side)
        paint.polygon(jaw, _shade(polymer, 1.12))
        clip = np.array(
            [(-0.26, gap), (0.02, gap), (0.02, gap - 0.035), (-0.26, 0.02)]
        ) * (1, side)
        paint.polygon(clip, (236, 240, 246))


def draw_bag(paint: ToolPainter, opening: float) -> None:
    """Specimen bag: a turquoise pouch with an open rim on a thin shaft.

    Args:
        paint (ToolPainter): Where to draw.
        opening (float): How far the rim is open, 0..1.
    """
    plastic = (92, 196, 196)
    paint.shaft(0.06, -0.3, (120, 126, 134))
    width = 0.36 + 0.08 * opening
    pouch = np.concatenate(
        [
            _arc((-0.05, 0), (0.36, width), 80, -80, 14),
            [(-0.34, -width * 0.8), (-0.42, 0), (-0.34, width * 0.8)],
        ]
    )
    paint.polygon(pouch, _shade(plastic, 0.86))
    for y, factor in ((-0.5, 1.08), (0.05, 0.76), (0.5, 1.1)):
        paint.polygon(
            [
                (-0.26, y * width - 0.03),
                (0.22, y * width * 0.7),
                (-0.26, y * width + 0.03),
            ],
            _shade(plastic, factor),
        )
    rim = (-0.3, 0.0)
    paint.polygon(_arc(rim, (0.12, width), 0, 340, 20), (36, 128, 140))
    paint.polygon(
        _arc(rim, (0.07, width * 0.84), 0, 340, 20), _shade(plastic, 0.5)
    )


def draw_irrigator(paint: ToolPainter, opening: float) -> None:
    """Suction-irrigator: blue tube with side holes and a jet of water.

    Args:
        paint (ToolPainter): Where to draw.
        opening (float): Strength of the jet, 0..1.
    """
    tube = (88, 140, 196)
    if opening > 0.25:
        reach = 0.25 + 0.35 * opening
        jet = [(0, -0.03), (reach, -0.14), (reach + 0.05, 0), (reach, 0.14)]
        paint.polygon([*jet, (0, 0.03)], (206, 226, 236))
    paint.shaft(0.095, -0.08, tube)
    paint.polygon(_arc((-0.08, 0), (0.09, 0.095), -90, 90), tube)
    for x in (-0.2, -0.36, -0.52):
        paint.polygon(_arc((x, 0.02), (0.045, 0.035), 0, 330), (24, 36, 60))


DRAW_TOOL = dict(
    grasper=draw_grasper,
    hook=draw_hook,
    clipper=draw_clipper,
    bag=draw_bag,
    irrigator=draw_irrigator,
)
"""Drawing functions by the names in ``TOOLS``."""
