"""The page's sections. Each returns its HTML, or nothing where there is no data for it."""

from __future__ import annotations

from typing import Any

from tsdfm.report.page import charts
from tsdfm.report.page.charts import Chart, finite
from tsdfm.report.page.gather import Found, label, way_label
from tsdfm.report.page.markup import REAL, badge, details, esc, figure, number
from tsdfm.report.page.provenance import provenance
from tsdfm.report.page.tables import chart_numbers, everything, examined, first_measure, headline, written_table
from tsdfm.report.page.ways import player, players


class Page:
    """Sections and the charts they refer to, as they are put together."""

    def __init__(self, found: Found) -> None:
        self.found, self.charts, self.sections = found, dict[str, Chart](), list[tuple[str, str, str]]()

    def add(self, name: str, title: str, inside: str) -> None:
        """A section, unless it is empty."""
        if inside:
            self.sections.append((name, title, inside))

    def draw(self, made: dict[str, Chart], x: str, y: str, *, legend: str = "shared") -> str:
        """Some charts in a grid, their numbers under them. The legend is `shared`, or `each` has one, or `none`."""
        if not made:
            return ""
        self.charts |= made
        figures = "".join(
            f"<div>{figure(name, esc(chart['caption']))}{key([name]) if legend == 'each' else ''}</div>"
            for name, chart in made.items()
        )
        under = key(list(made)) if legend == "shared" else ""
        return f'<div class="grid">{figures}</div>{under}{chart_numbers(list(made.values()), x, y)}'

    def html(self) -> str:
        """All sections with a list of them at the top."""
        links = "".join(f'<li><a href="#{name}">{esc(title)}</a></li>' for name, title, _ in self.sections)
        parts = "".join(
            f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{esc(title)}</h2>{inside}</section>'
            for name, title, inside in self.sections
        )
        return f'<nav aria-label="Sections"><ul>{links}</ul></nav><main>{parts}</main>'


def key(names: list[str]) -> str:
    """The place of a legend for some charts."""
    return f'<div class="legend" data-legend="{esc(" ".join(names))}"></div>'


def fill(page: Page) -> None:
    """Every section there is something to say in, in the order one would tell it."""
    found = page.found
    page.add("results", "Results", results(found))
    page.add("steps", "Quality against steps", quality(page))
    page.add("frontier", "Perplexity against entropy", frontier(page))
    page.add("trajectories", "How the texts come to be", trajectories(found))
    page.add("samples", "Samples", samples(found))
    page.add("compass", "Energy against time", compass(page))
    page.add("navigation", "Navigation", navigation(page))
    page.add("training", "Training", training(page))
    page.add("tables", "Tables", tables(found))
    page.add("provenance", "Where this comes from", provenance(found) if found.stages or found.rows else "")


def results(found: Found) -> str:
    """The headline table, and under it every row."""
    if not found.made:
        return ""
    judge = next((row.get("judge") for row in found.made if row.get("judge")), None)
    count = next((row.get("samples") for row in found.made), None)
    said = f"Every cell holds {number(count)} texts" if count else ""
    said += f", read by <code>{esc(judge)}</code>" if judge else ""
    warn = (
        "<p>Perplexity falls when text gets narrower, so it has to be read beside the entropy. Rows marked † have "
        "collapsed: their entropy lies more than one bit under that of held-out text.</p>"
    )
    said += ". The best of each column is bold; intervals are 95 %."
    return f"<p>{said}</p>{headline(found)}<h3>All measurements</h3>{warn}{everything(found)}"


def quality(page: Page) -> str:
    """Small multiples: a row of charts for each source."""
    out = ""
    for source in page.found.sources:
        made = charts.quality(page.found, source)
        out += f"<h3>{esc(source).capitalize()} source</h3>" if made else ""
        out += page.draw(made, "passes", "value")
    intro = "<p>Each point is a set of texts; bars are 95 % intervals; the line across is held-out text.</p>"
    return intro + out if out else ""


def frontier(page: Page) -> str:
    """The frontier, first by the entropy of each text's tokens."""
    first, second = (frontiers(page, entropy) for entropy in ("entropy_bits", "bigram_entropy_bits"))
    if not first:
        return ""
    more = details("The same against the entropy of pooled bigrams", second) if second else ""
    intro = (
        "<p>A curve is one method at several sampling temperatures (T = 1 is filled). Lower and further right is "
        "better; the circled point is held-out text. At equal entropy, perplexities can be compared.</p>"
    )
    return intro + first + more + (written_table(page.found.frontier) if page.found.frontier.get("columns") else "")


def frontiers(page: Page, entropy: str) -> str:
    """The frontier by one entropy, a grid of charts for each source."""
    out = ""
    for source in dict.fromkeys(point.get("source") for point in page.found.frontier_points()):
        drawn = page.draw(charts.frontier(page.found, entropy, source), "entropy", "perplexity") if source else ""
        out += f"<h3>{esc(source).capitalize()} source</h3>{drawn}" if drawn else ""
    return out


def trajectories(found: Found) -> str:
    """The players."""
    groups = players(found.ways)
    if not groups:
        return ""
    intro = (
        "<p>The same seed, so the same noise, written into text by each method. Play, or go step by step; "
        "with the slider focused, the arrow keys do so too.</p>"
    )
    out = "".join(
        f"<h3>{esc(group[0].source).capitalize()} source</h3>{player(index, group, found.methods)}"
        for index, group in enumerate(groups)
    )
    return intro + out


def samples(found: Found) -> str:
    """Sample texts, by step count; the fewest steps are open."""
    rows = [row for row in found.made if row.get("texts")]
    if not rows:
        return ""
    out = sample_card(found, found.real) if found.real and found.real.get("texts") else ""
    out = f'<div class="target">{out}</div>' if out else ""
    for index, steps in enumerate(sorted({int(row["steps"]) for row in rows})):
        inside = ""
        for source in found.sources:
            here = [row for row in rows if int(row["steps"]) == steps and row["source"] == source]
            cards = "".join(sample_card(found, row) for row in here)
            inside += f'<h3>{esc(source).capitalize()} source</h3><div class="cards">{cards}</div>' if cards else ""
        out += details(f"{steps} {'pass' if steps == 1 else 'passes'}", inside, open=index == 0)
    return "<p>The first texts of each cell, not chosen.</p>" + out


def sample_card(found: Found, row: dict[str, Any]) -> str:
    """A row's texts under its name."""
    name, _, show, title, _ = first_measure(found)
    about = f"{title.lower()} {show(row[name])}" if finite(row.get(name)) else ""
    texts = "".join(f"<blockquote>{esc(text) or '<i>(empty)</i>'}</blockquote>" for text in row["texts"])
    mark = " †" if row.get("collapsed") else ""
    head = f"{badge(label(row), found.methods)}{mark} <small>{esc(about)}</small>"
    return f"<article><h4>{head}</h4>{texts}</article>"


def compass(page: Page) -> str:
    """Energy curves, and what the examination said."""
    drawn = page.draw(charts.energy(page.found), "t", "energy", legend="none")
    if not drawn:
        return ""
    intro = (
        "<p>The compass gives a state of a text an energy, lower is better. Along a held-out text's way from noise "
        "(t = 0) to text (t = 1) it should fall. The band is one standard deviation to either side.</p>"
    )
    known = "compass-table" in page.found.tables  # `tsdfm report compass` says it at length
    return intro + drawn + ("" if known else examined(page.found))


def navigation(page: Page) -> str:
    """What the compass did in training."""
    out = ""
    for run in page.found.stages:
        drawn = page.draw(charts.navigation(run), "step", "value", legend="each")
        out += f"<h3>{esc(run.name)}</h3>{drawn}" if drawn else ""
    intro = (
        "<p>While a TS-DFM student is trained, the compass chooses among candidate midpoints and refines tokens of the "
        "chosen one: how often it acts, how often a refinement is kept, and what energy it wins over a blind jump.</p>"
    )
    return intro + out if out else ""


def training(page: Page) -> str:
    """Training curves, the runs of a kind together."""
    out = ""
    for group, runs in charts.kinds(page.found).items():
        drawn = page.draw(charts.training(group, runs), "step", "value")
        out += f"<h3>{group}</h3>{drawn}" if drawn else ""
    return out


def tables(found: Found) -> str:
    """What the commands of `tsdfm report` wrote."""
    return "".join(
        f"<h3>{esc(made.get('title') or name)}</h3>{written_table(made)}" for name, made in found.tables.items()
    )


def glance(found: Found) -> str:
    """The first source at the step count most methods share: a tile a method, the target last."""
    name, interval, show, title, _ = first_measure(found)
    for source in found.sources:
        rows = [row for row in found.made if row["source"] == source and finite(row.get(name))]
        if not rows:
            continue
        counts = {s: sum(int(row["steps"]) == s for row in rows) for s in {int(row["steps"]) for row in rows}}
        shared = [s for s, count in counts.items() if count == max(counts.values())]
        steps = 8 if 8 in shared else min(shared)  # the paper's headline is at eight
        here = [row for row in rows if int(row["steps"]) == steps]
        tiles = "".join(tile(badge(label(row), found.methods), show(row[name]), row, interval, show) for row in here)
        if found.real and finite(found.real.get(name)):
            tiles += tile(badge(REAL, found.methods), show(found.real[name]), found.real, interval, show)
        passes = f"{steps} network {'pass' if steps == 1 else 'passes'}"
        return f'<div class="glance"><p>{title} at {passes}, {esc(source)} source</p><dl>{tiles}</dl></div>'
    return ""


def tile(name: str, value: str, row: dict[str, Any], interval: str, show: Any) -> str:
    """One big number."""
    ends = row.get(interval)
    span = " to ".join(show(end) for end in ends) if isinstance(ends, list) and all(map(finite, ends)) else ""
    return f"<div><dt>{name}</dt><dd>{value}<small>{span}</small></dd></div>"


def methods_line(found: Found) -> str:
    """What is compared, in a few words."""
    names = [m for m in found.methods if m != REAL] or [way_label(way) for way in found.ways]
    made = f"{len(names)} method{'s' if len(names) != 1 else ''}" if names else ""
    sources = " and ".join(found.sources)
    return ", ".join(part for part in (made, f"{sources} source" if sources else "") if part)
