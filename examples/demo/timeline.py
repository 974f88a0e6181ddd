"""A picture of what happened: one lane a rank, time to the right, colour by node. Plain SVG, no libraries."""
import html

NODE_COLOURS = ["#4878a8", "#d98b2b", "#6a9a50", "#a05a8c", "#8c6d46", "#5b8c8c"]
WIDTH, LEFT, LANE, TOP = 1180, 150, 30, 56


class Timeline:
    """Collects bars (lane, from, to, node, kind) and marks (time, text); times in seconds of one clock."""

    def __init__(self, title):
        self.title, self.bars, self.marks, self.lanes = title, [], [], []

    def bar(self, lane, start, end, node, kind):
        """kind: run, staged (in RAM, no process), copy (between the cut and staged)."""
        if lane not in self.lanes:
            self.lanes.append(lane)
        if end > start:
            self.bars.append((lane, start, end, node, kind))

    def mark(self, time, text):
        self.marks.append((time, text))

    def svg(self):
        times = [t for b in self.bars for t in b[1:3]] + [t for t, _ in self.marks]
        first, last = min(times), max(times)
        scale = (WIDTH - LEFT - 20) / max(last - first, 1e-9)
        x = lambda t: LEFT + (t - first) * scale
        nodes = sorted({b[3] for b in self.bars})
        colour = {node: NODE_COLOURS[i % len(NODE_COLOURS)] for i, node in enumerate(nodes)}
        bottom = TOP + LANE * len(self.lanes)
        height = bottom + 60 + 16 * len(self.marks)
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
               '<rect width="100%" height="100%" fill="white"/>',
               '<defs><pattern id="ram" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
               '<rect width="3" height="6" fill="white" opacity="0.75"/></pattern></defs>',
               f'<text x="10" y="20" font-size="15" font-weight="bold">{html.escape(self.title)}</text>']
        for i, node in enumerate(nodes):
            out.append(f'<rect x="{LEFT + i * 110}" y="30" width="12" height="12" fill="{colour[node]}"/>'
                       f'<text x="{LEFT + 16 + i * 110}" y="40">{html.escape(node)}</text>')
        out.append(f'<text x="{LEFT + len(nodes) * 110}" y="40" fill="#555">striped: staged in RAM, slot free · dark: copying</text>')
        for i, lane in enumerate(self.lanes):
            y = TOP + LANE * i
            out.append(f'<text x="10" y="{y + 19}">{html.escape(lane)}</text>'
                       f'<line x1="{LEFT}" y1="{y + LANE - 2}" x2="{WIDTH - 20}" y2="{y + LANE - 2}" stroke="#eee"/>')
        for lane, start, end, node, kind in self.bars:
            y, w = TOP + LANE * self.lanes.index(lane), max((end - start) * scale, 1.2)
            fill = "#222" if kind == "copy" else colour[node]
            out.append(f'<rect x="{x(start):.1f}" y="{y + 4}" width="{w:.1f}" height="{LANE - 10}" fill="{fill}">'
                       f'<title>{html.escape(lane)}: {kind} on {html.escape(node)}, {(end - start) * 1000:.0f} ms</title></rect>')
            if kind == "staged":
                out.append(f'<rect x="{x(start):.1f}" y="{y + 4}" width="{w:.1f}" height="{LANE - 10}" fill="url(#ram)"/>')
        for i, (time, text) in enumerate(sorted(self.marks)):
            out.append(f'<line x1="{x(time):.1f}" y1="{TOP - 6}" x2="{x(time):.1f}" y2="{bottom + 4}" stroke="#b22" stroke-dasharray="3 3"/>'
                       f'<text x="{x(time):.1f}" y="{bottom + 16}" fill="#b22" text-anchor="middle">{i + 1}</text>'
                       f'<text x="{LEFT}" y="{bottom + 40 + 16 * i}"><tspan fill="#b22">{i + 1}</tspan> '
                       f'{time - first:7.2f} s  {html.escape(text)}</text>')
        return "\n".join(out + ["</svg>\n"])
