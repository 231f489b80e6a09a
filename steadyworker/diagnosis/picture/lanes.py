"""
The time line of a connection as SVG: a lane for each end, then the waiting deliveries, and the send queues.

The whole picture has one linear scale of time.
Places in time are percentages and heights are pixels, so the picture fits any width, and its texts keep their size.
Shapes that cannot use percentages are in an inner SVG, which stretches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, log1p, log10

from steadyworker.diagnosis.picture.curves import Level
from steadyworker.diagnosis.picture.event_fields import SIDES
from steadyworker.diagnosis.picture.flags import Flag
from steadyworker.diagnosis.picture.markup import Markup, tag, together
from steadyworker.diagnosis.picture.story import Gap, Lane, Story
from steadyworker.diagnosis.picture.verdict import ending
from steadyworker.diagnosis.picture.words import lapse
from steadyworker.units import count_text, size_text

_FLAGS = 26
_LABEL = 18
_LANE = 46
_CHART = 48
_SPACE = 10
_AXIS = 22
_TICKS = 6
_NEAR = 2.6
"""A percentage of the width; if flags are nearer to each other than this percentage, they get one marker together."""

_MOST_GAPS = 40
_NAMED_GAP = 9.0
_ROOMY_GAP = 32.0
_SHORT_NAMES = {"unacked": "without an ack:", "queue": "bytes waiting to be read:"}
_STEPS = (
    *(digit * 10.0**power for power in range(-4, 0) for digit in (1, 2, 5)),
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600),
)
"""The possible seconds between two ticks of the axis; a longer scale doubles the last value."""


class Scale:
    """The scale from the time of a connection to the width of the picture."""

    def __init__(self, story: Story) -> None:
        self.start = story.start
        self.end = max(story.last, story.start + 0.001)

    def place(self, t: float) -> float:
        """Return the percentage of the width at which a time is drawn."""
        return min(max((t - self.start) / (self.end - self.start) * 100, 0.0), 100.0)

    def grouping(self, width: float, most: int) -> tuple[int, float]:
        """
        Return how many bins of this width make a group, so that there are at most `most` groups.

        The second value is the length of the scale in groups.
        """
        length = (self.end - self.start) / width
        number = 1
        while length / number > most:
            number *= 2
        return number, length / number

    def step(self) -> float:
        """Return the time between two ticks: a round time that fits a few times on the scale."""
        length = self.end - self.start
        step = next((step for step in _STEPS if length / step <= _TICKS), _STEPS[-1])
        while length / step > _TICKS:
            step *= 2
        return step

    def tick_name(self, t: float, step: float) -> str:
        """Return the text of a time on the axis, as exact as the step requires."""
        if step < 1:
            return f"{t:.{max(1, ceil(-log10(step)))}f} s"
        for unit, seconds in (("h", 3600), ("min", 60)):
            if t >= seconds:
                whole, rest = divmod(round(t), seconds)
                return f"{whole}:{rest * 60 // seconds:02} {unit}" if rest else f"{whole} {unit}"
        return f"{t:.0f} s"

    def ticks(self, step: float) -> Iterator[float]:
        """Yield the times of the axis."""
        t = -(-self.start // step) * step
        while t <= self.end:
            yield t
            t += step


def lanes(story: Story, bins: int, known: frozenset[str]) -> Markup:
    """Return the picture of a connection with `bins` bins of time; the picture links only to the `known` places on the page."""
    scale = Scale(story)
    parts: list[Markup] = []
    top = _FLAGS
    for side in SIDES:
        parts.append(_lane(story, side, scale, top, bins))
        top += _LABEL + _LANE + _SPACE
    foot = top
    parts.extend(_axis(scale, foot))
    top += _AXIS
    for label, level, style, limit in _levels(story):
        parts.append(_chart(label, level, style, limit, scale, top, bins))
        top += _LABEL + _CHART + _SPACE
    parts.extend(_ends(story, scale))
    parts.extend(_markers(story, scale, foot, known))
    return tag(
        "svg", *parts, class_="lanes", width="100%", height=top, role="img", aria_label=summary(story), overflow="visible",
        data_start=f"{scale.start:.6f}", data_end=f"{scale.end:.6f}",
    )  # fmt: skip


def summary(story: Story) -> str:
    """Return a description of the picture, for people who cannot see the picture."""
    sent = [f"the {side} sent {count_text(story.lanes[side].frames, 'frame')}" for side in SIDES]
    gaps = [f"no byte from the {gap.side} for {lapse(gap.end - gap.start)}" for gap in story.gaps[:3]]
    ends = [ending(close) for close in story.closes[:1]]
    flags = [count_text(story.flagged, "flag")] if story.flagged else []
    return f"Time line of {lapse(story.last - story.start)}: " + ", ".join([*sent, *gaps, *flags, *ends]) + "."


def _top_of(side: str) -> int:
    return _FLAGS + (side == "broker") * (_LABEL + _LANE + _SPACE) + _LABEL


def _lane(story: Story, side: str, scale: Scale, top: int, bins: int) -> Markup:
    lane = story.lanes[side]
    beats = f", {count_text(lane.heartbeats, 'heartbeat')}" if lane.heartbeats else ""
    name = tag("tspan", side.capitalize(), class_=f"name {side}")
    totals = f"  sent {count_text(lane.frames, 'frame')}, {size_text(lane.bytes)}{beats}"
    above = top + _LABEL
    gaps = [gap for gap in story.gaps if gap.side == side]
    longest = sorted(gaps, key=lambda gap: gap.start - gap.end)[:_MOST_GAPS]
    return together(
        [
            tag("text", name, tag("tspan", totals, class_="quiet"), y=top + 12),
            tag("rect", class_="floor", y=above, width="100%", height=_LANE),
            _sent(lane, side, scale, above, bins),
            *(_gap(gap, scale, above) for gap in longest),
        ]
    )


def _sent(lane: Lane, side: str, scale: Scale, top: int, bins: int) -> Markup:
    """Return a bar for the bytes that an end sent, and a dot for each heartbeat or for several close heartbeats."""
    number, length = scale.grouping(lane.sent.width, bins)
    counts = lane.sent.grouped(number)
    most = max(counts)
    heights = [0 if not count else 8 + round(log1p(count) / log1p(most) * (_LANE - 18)) for count in counts]
    bars = "".join(
        f"M{start} {_LANE}v-{height}h{min(end, length) - start:.4g}v{height}z"
        for start, end, height in _runs(heights)
        if height
    )
    beats, beats_length = scale.grouping(lane.beats.width, bins)
    dots = "".join(f"M{at}.5 6h.01" for at, count in enumerate(lane.beats.grouped(beats)) if count)
    return together(
        [
            _stretched(tag("path", d=bars, class_=f"bars {side}"), top, _LANE, length),
            _stretched(tag("path", d=dots, class_=f"beats {side}"), top, _LANE, beats_length),
        ]
    )


def _runs(values: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the start, the end and the value of each stretch of equal values."""
    start = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[start]:
            yield start, at, values[start]
            start = at


def _stretched(content: Markup, top: float, height: int, length: float) -> Markup:
    return tag(
        "svg", content, y=top, width="100%", height=height, viewBox=f"0 0 {length:.4f} {height}", preserveAspectRatio="none",
        overflow="visible",
    )  # fmt: skip


def _gap(gap: Gap, scale: Scale, top: int) -> Markup:
    left, right = scale.place(gap.start), scale.place(gap.end)
    width = max(right - left, 0.3)
    allowed = f", allowed {lapse(gap.allowed)}" if gap.allowed else ""
    label = f"{lapse(gap.end - gap.start)} silent" + allowed * (width >= _ROOMY_GAP)
    hint = tag("title", f"No byte from the {gap.side} for {lapse(gap.end - gap.start)}{allowed}")
    shape = tag("rect", hint, class_="gap", x=f"{left:.2f}%", y=top, width=f"{width:.2f}%", height=_LANE)
    if width < _NAMED_GAP:
        return shape
    size = "roomy" if width >= _ROOMY_GAP else "tight"
    return together(
        [shape, tag("text", label, class_=f"gap-name {size}", x=f"{left + width / 2:.2f}%", y=top + _LANE / 2 + 4)]
    )


def _axis(scale: Scale, top: int) -> Iterator[Markup]:
    step, named = scale.step(), scale.tick_name
    for t in scale.ticks(step):
        at = scale.place(t)
        anchor = "start" if at < 3 else "end" if at > 97 else "middle"  # noqa: PLR2004 - percent, at the edges
        yield tag("line", class_="tick", x1=f"{at:.2f}%", x2=f"{at:.2f}%", y1=_FLAGS, y2=top)
        yield tag("text", named(t, step), class_="quiet", x=f"{at:.2f}%", y=top + 12, text_anchor=anchor)


def _levels(story: Story) -> Iterator[tuple[str, Level, str, float | None]]:
    if story.unacked.highest > 1:
        limit = f" (prefetch {story.prefetch:,})" if story.prefetch else ""
        yield (
            f"Deliveries without an ack: peak {story.unacked.highest:,.0f}{limit}",
            story.unacked,
            "unacked",
            story.prefetch,
        )
    for side, level in story.queues.items():
        if level.highest:
            yield f"Waiting to be read by the {side}: peak {size_text(int(level.highest))}", level, "queue", None


def _chart(label: str, level: Level, style: str, limit: float | None, scale: Scale, top: int, bins: int) -> Markup:
    """Return the chart of a level over time; a limit is drawn as a dashed line if it is in the chart's range."""
    number, length = scale.grouping(level.width, bins)
    most = max(level.highest, 1.0)
    heights = [round(value / most * (_CHART - 4)) or int(value > 0) for value in level.grouped(number)]
    steps = [(float(end), height) for start, end, height in _runs(heights) if start < length]
    steps[-1] = (length, steps[-1][1])
    path = f"M0 {_CHART}" + "".join(f"V{_CHART - height}H{end:.5g}" for end, height in steps) + f"V{_CHART}z"
    above = top + _LABEL
    parts = [
        tag("text", label, class_="quiet", y=top + 12),
        tag("rect", class_="floor", y=above, width="100%", height=_CHART),
        _stretched(
            tag("path", d=path, class_=f"area {style}", data_most=f"{most:g}", data_name=_SHORT_NAMES[style]),
            above,
            _CHART,
            length,
        ),
    ]
    if limit and limit <= most:
        at = above + _CHART - limit / most * (_CHART - 4)
        parts.append(tag("line", class_="limit", x1="0", x2="100%", y1=float(at), y2=float(at)))
    return together(parts)


def _ends(story: Story, scale: Scale) -> Iterator[Markup]:
    for number, close in enumerate(story.closes):
        at = f"{scale.place(close.t):.2f}%"
        yield tag("line", class_="close", x1=at, x2=at, y1=_top_of("client"), y2=_top_of("broker") + _LANE)
        side = close.who if close.who in SIDES else "broker"
        hint = tag("title", f"Here {ending(close, first=not number)}")
        yield tag("text", "✕", hint, class_="close-name", x=at, y=_top_of(side) + _LANE / 2 + 6)


def _markers(story: Story, scale: Scale, foot: int, known: frozenset[str]) -> Iterator[Markup]:
    """Yield a numbered marker for each flag that the page describes; markers that would overlap are joined."""
    flags = sorted((flag for alike in story.flags.values() for flag in alike.first), key=lambda flag: flag.t)
    groups: list[list[Flag]] = []
    for flag in flags:
        if groups and scale.place(flag.t) - scale.place(groups[-1][0].t) < _NEAR:
            groups[-1].append(flag)
        else:
            groups.append([flag])
    for group in groups:
        first = group[0]
        at = f"{scale.place(first.t):.2f}%"
        level = "error" if any(flag.is_error for flag in group) else "warning"
        number = f"{first.number}" if len(group) == 1 else f"{first.number}+"
        hint = tag("title", "; ".join(flag.what or flag.id for flag in group[:3]))
        yield tag("line", class_=f"moment {level}", x1=at, x2=at, y1=20, y2=foot)
        shown = (hint, tag("circle", cx=at, cy=11, r=10), tag("text", number, x=at, y=15))
        anchor = f"flag{first.number}"
        style = f"marker {level}"
        yield tag("a", *shown, href=f"#{anchor}", class_=style) if anchor in known else tag("g", *shown, class_=style)
