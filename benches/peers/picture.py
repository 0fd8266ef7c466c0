#!/usr/bin/env python3
"""Draws the report of one_client.py as bars: Drystone's rate and CPU to those of the better peer.

Reads the table (Markdown) from standard input and writes an SVG to standard output, for README:

    /usr/bin/python3 benches/peers/picture.py <docs/design/0016-one-client.md >docs/one-client.svg

Of several tables with these columns the last one counts. Values come from the columns `rate` and
`CPU of the server`, each a median with the lowest and the highest round in brackets.
"""
import html
import re
import sys

HEADER = re.compile(r"^\| workload \| Drystone \|")
RATIO = re.compile(r"^([\d.]+) \(([\d.]+) to ([\d.]+)\)$")
LEFT, WIDTH, STEP, TOP, MOST = 290, 420, 22, 60, 2.4
AHEAD, BEHIND, CPU = "#2f7d4f", "#b5422c", "#8a8f98"


def last_table(lines):
    """The rows of the last table, as lists of cells."""
    table, within = [], False
    for line in lines:
        if HEADER.match(line):
            table, within = [], True
        elif within and line.startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        else:
            within = False
    return [cells for cells in table if RATIO.match(cells[3])]


def x_of(ratio):
    return LEFT + min(ratio, MOST) / MOST * WIDTH


def bar(y, height, ratio, colour):
    return (f'<rect x="{LEFT}" y="{y}" width="{x_of(ratio) - LEFT:.1f}" height="{height}" '
            f'fill="{colour}"/>')


def text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y}" {more}>{html.escape(words)}</text>'


def row(number, cells):
    """The bars of a workload: the rate with its spread, and below it the CPU."""
    y = TOP + number * STEP
    rate, low, high = map(float, RATIO.match(cells[3]).groups())
    cpu = float(RATIO.match(cells[4]).group(1))
    peer = cells[2].split()[0]
    return "\n".join([
        text(LEFT - 8, y + 12, f"{cells[0]} ({peer})", 'text-anchor="end"'),
        bar(y + 2, 9, rate, AHEAD if rate >= 1 else BEHIND),
        bar(y + 12, 4, cpu, CPU),
        f'<path d="M{x_of(low):.1f} {y + 6.5}H{x_of(high):.1f}" stroke="#222" stroke-width="1"/>',
        text(LEFT + WIDTH + 8, y + 12, f"{rate:.2f}, CPU {cpu:.2f}"),
    ])


def picture(rows):
    height = TOP + len(rows) * STEP + 16
    ticks = [f'<path d="M{x_of(at):.1f} {TOP - 6}V{height - 12}" stroke="#999" '
             f'stroke-dasharray="{"none" if at == 1 else "2 3"}"/>'
             + text(x_of(at), TOP - 10, f"{at:g}", 'text-anchor="middle"')
             for at in (0.5, 1, 1.5, 2)]
    title = "NBD with one client: Drystone's rate to that of the better peer, which is in brackets"
    legend = ("1 is equal; green: ahead, red: behind, line: lowest to highest round; "
              "grey: CPU of the server, where less is better")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 130}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        text(8, 18, title, 'font-size="13" font-weight="bold"'),
        text(8, 34, legend, 'fill="#555"'),
        *ticks,
        *(row(number, cells) for number, cells in enumerate(rows)),
        "</svg>",
    ])


def main():
    rows = last_table(sys.stdin.read().splitlines())
    if not rows:
        sys.exit("picture.py: standard input holds no table like that of one_client.py")
    print(picture(rows))


if __name__ == "__main__":
    main()
