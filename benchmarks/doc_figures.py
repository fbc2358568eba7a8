#!/usr/bin/env python3
"""Keep the figures of the documents equal to the committed results.

Every table below follows its name in a page, as in ``<!-- figures: speed -->``; a sentence stands in its page as it is
formed here. Without an option, this compares and reports what differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from math import prod
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from quality import ROOT
from quality.arguments import RESULTS
from quality.command import read_plan
from quality.runs import Run, key_of
from quality.scores import scale_of
from quality.tables import BASELINE, Summary, by_data, read_results, summarize
from result_table import Row, read_rows
from timing.losses import CASES, NAMES, OTHERS

CONTROL, OURS, NO_REGIONS = (
    "edge-weighted CE (k 12, class_balance 1)",
    "EdgeAwareLoss() (region_weight 0.25)",
    "EdgeAwareLoss() (region_weight 0)",
)
RIVAL, NEW = "CE + Dice (weight 2, k 12, class_balance 1)", "EdgeAwareLoss()"  # of version 0.3
MAIN = ("f1_1", "boundary_iou_005", "miou")
CLASSES = {"camvid": 11, "sstem": 5, "topomortar": 2, "dsb2018": 2, "hippocampus": 3}

Pages = dict[str, Callable[[], list[str]]]  # by page, the lines of a table or the sentences


class Gain(NamedTuple):
    """Differences of a loss with the same seeds, and the interval of their mean."""

    values: list[float]
    low: float
    high: float


class Figures(NamedTuple):
    """Figures of a result.

    Attributes:
        command: what measures them, or prints them from the results.
        results: the file.
        tables: by page, the lines of the table.
        sentences: by page, parts of its text.
    """

    command: str
    results: str
    tables: Pages = {}  # noqa: RUF012
    sentences: Pages = {}  # noqa: RUF012


def table(heads: str, rows: Iterable[str]) -> list[str]:
    """Return a table in Markdown; heads have a colon where numbers align to the right."""
    cells = heads.split(" | ")
    lines = "|".join("--:" if cell.endswith(":") else "---" for cell in cells)
    return [
        f"| {' | '.join(cell.removesuffix(':') for cell in cells)} |",
        f"|{lines}|",
        *(f"| {row} |" for row in rows),
    ]


# ---------------------------------------------------------------------------------------------------------------- speed


@cache
def speed() -> dict[str, Row]:
    """Return the rows of the loss's time by case, all of one machine and version."""
    rows = read_rows(RESULTS / "speed.jsonl")
    machines = {(row["kernels"], *(row["machine"][k] for k in ("processor", "instructions", "torch"))) for row in rows}
    if len(machines) != 1:
        raise ValueError(
            f"speed.jsonl: expected the rows of one machine and version, but got {sorted(machines)}; delete the others"
        )
    by_case = {row["case"]: row for row in rows}
    return {case.name: by_case[case.name] for cases in CASES.values() for case in cases if case.name in by_case}


def ratios(case: str) -> str:
    """Return the ratios of a case as cells."""
    ratio = speed()[case]["ratio"]
    return f"{ratio['EdgeAwareLoss']:.2f} | {ratio['region_weight=0']:.2f}"


def speed_table() -> list[str]:
    """Return the table of common cases."""
    rows = [row for row in speed().values() if not row["case"].startswith("noise")]
    held = [", ".join(f"{size / 1e6:.1f}" for size in row["held_bytes"].values()) for row in rows]
    cells = (f"{r['case']} | {r['logits']} {r['dtype']} | {ratios(r['case'])}" for r in rows)
    return table(
        "case | logits | default: | `region_weight=0`: | held, MB:", map(" | ".join, zip(cells, held, strict=True))
    )


def cliffs_table() -> list[str]:
    """Return the table of cases where nearly every pixel is an edge pixel."""
    rows = [row for row in speed().values() if row["case"].startswith("noise")]
    return table(
        "random labels | logits | default: | `region_weight=0`:",
        (f"{r['case']} | {r['logits']} {r['dtype']} | {ratios(r['case'])}" for r in rows),
    )


SHORT = {
    "19 classes": "19 classes, [4, 19, 512, 512]",
    "2 classes": "2 classes, [8, 2, 512, 512]",
    "binary": "1 logit, [8, 1, 512, 512]",
    "volume": "a volume of 4 classes, [1, 4, 64, 128, 128]",
    "11 classes, one thread": "the trainings on CamVid above, [4, 11, 120, 160], one thread",
    "upsampled, 19 classes": "19 classes upsampled 4 ×, [4, 19, 128, 128]",
}


def machine() -> tuple[str, str]:
    """Return what the times depend on, as pages name it: the processor, and torch."""
    about = speed()["19 classes"]["machine"]
    return f"{about['processor']} with {about['instructions']}", f"torch {about['torch']}"


def speed_sentences() -> list[str]:
    """Return the machine of the tables, in full."""
    about = speed()["19 classes"]["machine"]
    processor, torch = machine()
    return [f"{processor}, {about['cores']} cores, {about['threads']} threads, {torch}"]


def held() -> tuple[float, float]:
    """Return the bytes per pixel that cross-entropy and the loss keep from forward to backward."""
    row = speed()["19 classes"]
    pixels = prod(row["logits"]) / row["logits"][1]
    plain, ours = (row["held_bytes"][name] / pixels for name in ("cross-entropy", "EdgeAwareLoss"))
    return plain, ours


def memory_sentences() -> list[str]:
    """Return the machine of the short table, and what the loss keeps per pixel."""
    plain, ours = held()
    return [
        ", ".join(machine()),
        f"19 classes keep {ours:.0f} bytes per pixel, where cross-entropy keeps {plain:.0f}",
    ]


def step_sentences() -> list[str]:
    """Return what a training step takes."""
    result = json.loads((RESULTS / "training.json").read_text())
    share, seconds = result["loss_share"], result["step_seconds"]
    return [f"A step of 4 images takes {seconds:.2f} s, of which the loss takes {100 * share:.1f} %"]


def gpu_table() -> list[str]:
    """Return times on a GPU: of the device, as a ratio, and of Python to enqueue a step."""
    cells = []
    for row in read_rows(RESULTS / "gpu.jsonl"):
        if row["step"] == "speed":
            dtype = "bfloat16" if row["name"] == "bfloat16" else "float32"
            first, *others = (row[name] for name in (*NAMES, OTHERS[0]) if name in row)
            ratios = [f"{cell['microseconds']:.0f} ({cell['ratio']:.2f})" for cell in others]
            ours = sum(others[0]["kernels"].values())
            cells.append(
                f"{row['logits']} {dtype} | {first['microseconds']:.0f} | {' | '.join([*ratios, ''][:3])}"
                f" | {ours:.0f} | {others[0]['host_microseconds'] / 1e3:.1f}"
            )
    heads = "logits | cross-entropy: | default: | `region_weight=0`: | compiled cross-entropy:"
    return table(f"{heads} | kernels: | to enqueue, ms:", cells)


# -------------------------------------------------------------------------------------------------------------- quality


@cache
def quality(baseline: str = BASELINE) -> dict[str, dict[str, Summary]]:
    """Return the summaries of the five data sets, by data set and loss."""
    plan = read_plan(ROOT / "configs" / "quality-sets.yaml")
    sets = by_data(read_results([RESULTS / "quality.jsonl"], "val", plan))
    return {data: {row["loss"]: row for row in summarize(rows, baseline)} for data, rows in sets.items()}


def scores(data: str, loss: str) -> str:
    """Return the mean scores of a loss."""
    return scores_of(quality()[data][loss])


def scores_of(summary: Summary) -> str:
    """Return the mean scores of a summary."""
    return " / ".join(f"{summary['scores'][name][0] * scale_of(name):.1f}" for name in MAIN)


def gain(data: str, name: str, loss: str = OURS, baseline: str = BASELINE) -> Gain:
    """Return the differences of a loss to the baseline, in points."""
    return gain_of(quality(baseline)[data][loss], name)


def gain_of(summary: Summary, name: str) -> Gain:
    """Return the differences of a summary in a score, in points."""
    difference = summary["differences"][name]
    return Gain([100 * value for value in difference["values"]], *(100 * end for end in difference["interval"]))


def gains(summary: Summary) -> str:
    """Return the differences in all scores as cells: mean, interval and seeds, bold where the interval excludes 0."""
    cells = []
    for name in MAIN:
        values, low, high = gain_of(summary, name)
        mean = f"**{fmean(values):+.1f}**" if low > 0 or high < 0 else f"{fmean(values):+.1f}"
        cells.append(f"{mean} [{low:.1f}, {high:.1f}] ({', '.join(f'{value:.1f}' for value in values)})")
    return " | ".join(cells).replace("-0.0", "0.0")


def seeds(data: str) -> str:
    """Return the numbers of seeds of the three losses."""
    return ", ".join(str(len(quality()[data][loss]["seeds"])) for loss in (BASELINE, CONTROL, OURS))


def quality_rows(data: str) -> str:
    """Return the scores of the three losses as cells."""
    return " | ".join(scores(data, loss) for loss in (BASELINE, CONTROL, OURS))


def readme_row(data: str, summaries: dict[str, Summary], losses: tuple[str, str, str]) -> str:
    """Return the scores of three losses, the last one's bold where all intervals exclude 0."""
    plain, rival, ours = (scores_of(summaries[loss]) for loss in losses)
    clear = all(gain_of(summaries[losses[-1]], name).low > 0 for name in MAIN)
    return f"{data} | {CLASSES[data.split(',')[0]]} | {plain} | {rival} | {f'**{ours}**' if clear else ours}"


def quality_sentences() -> list[str]:
    """Return what pages say of the five data sets in words."""
    camvid, sstem = (
        " / ".join(f"{fmean(gain(data, name).values):.1f}" for name in MAIN) for data in ("camvid", "sstem")
    )
    return [f"{camvid} points on CamVid and {sstem} on ssTEM"]


def control_sentences() -> list[str]:
    """Return how far the control is behind on CamVid."""
    return [f"On CamVid the control is {fmean(gain('camvid', 'f1_1', OURS, CONTROL).values):.1f} points of F1 behind"]


def trained_table(plan: str, *results: str) -> list[str]:
    """Return the mean scores of a plan's losses over the seeds that the default was trained with."""
    names = ("f1_1", "precision_1", "recall_1", "boundary_iou_005", "miou", "ece_edge")
    done = {key_of(row): row for row in read_rows(*(RESULTS / name for name in results))}
    sets: dict[str, list[tuple[Run, Row]]] = {}
    for run in read_plan(ROOT / "configs" / plan):
        if f"{run.slug}-val" in done:
            sets.setdefault(setting_of(run), []).append((run, done[f"{run.slug}-val"]))
    cells = []
    for setting, rows in sets.items():
        if len({run.title for run, _ in rows}) == 1:  # nothing to compare with yet
            continue
        seeds = {run.seed for run, _ in rows if run.loss == "module"}
        of_loss: dict[str, list[Row]] = {}
        for run, row in rows:
            if run.seed in seeds:
                of_loss.setdefault(run.title, []).append(row["metrics"])
        for loss, metrics in of_loss.items():
            means = [[m[name] for m in metrics if m.get(name) is not None] for name in names]  # earlier runs lack some
            f1, precision, recall, *others = (f"{100 * fmean(values):.1f}" if values else "" for values in means)
            cells.append(f"{setting} | {loss} | {len(metrics)} | {f1} ({precision}, {recall}) | {' | '.join(others)}")
    return table(
        "data | loss | seeds: | boundary F1 (precision, recall): | Boundary IoU: | mIoU: | ECE at edges:", cells
    )


@cache
def pretrained(baseline: str = BASELINE) -> dict[str, Summary]:
    """Return the summaries of the pretrained network on CamVid in the first size of its plan, by loss."""
    first, *others = read_plan(ROOT / "configs" / "quality-pretrained.yaml")
    plan = [first, *(run for run in others if setting_of(run) == setting_of(first))]
    (rows,) = by_data(read_results([RESULTS / "pretrained.jsonl"], "val", plan)).values()
    return {row["loss"]: row for row in summarize(rows, baseline)}


def pretrained_sentences() -> list[str]:
    """Return how far the default is ahead of cross-entropy on CamVid with a pretrained network."""
    means = " / ".join(f"{fmean(gain_of(pretrained()[NEW], name).values):.1f}" for name in MAIN)
    return [f"{means} points with a pretrained network"]


def holm_sentences() -> list[str]:
    """Return the largest p-value of cross-entropy and the rival next to the default, adjusted for their number."""
    compared = (pretrained(NEW)[loss]["differences"] for loss in (BASELINE, RIVAL))
    largest = max(differences[name]["p_holm"] for differences in compared for name in MAIN[:2])
    return [f"both p-values, by Holm's method, are {largest:.3f} or less"]


def setting_of(run: Run) -> str:
    """Return the data set of a run, with its size and what it starts from where a plan has several."""
    if run.network == "unet":
        return run.data
    size = " × ".join(map(str, reversed(run.size or ())))
    return f"{run.data} {size}" + ", from scratch" * (not run.pretrained)


def cost_table() -> list[str]:
    """Return time and memory of every loss alone."""
    measured = json.loads((RESULTS / "quality-cost.json").read_text())["losses"]
    cells = (f"{c['milliseconds']:.1f} | {c['ratio']:.2f} | {c['megabytes']:.1f}" for c in measured.values())
    return table("loss | ms: | × CE: | MB:", map(" | ".join, zip(measured, cells, strict=True)))


def landing_table() -> list[str]:
    """Return three figures, each above what it is."""
    plain, ours = held()
    points, ratio = fmean(gain("camvid", "f1_1").values), speed()["19 classes"]["ratio"]["EdgeAwareLoss"]
    heads = f"{points:+.1f} points | {ratio:.2f} × the time | {ours:.0f} bytes per pixel"
    what = (
        "of boundary F1 (1 px) on CamVid, next to cross-entropy, over five seeds of version 0.2",
        "of `F.cross_entropy`, forward and backward, for 19 classes on a CPU; no GPU has run it yet",
        f"from forward to backward, for 19 classes; cross-entropy keeps {plain:.0f}",
    )
    return table(heads, [" | ".join(what)])


HEADS = "cross-entropy: | control: | `EdgeAwareLoss()`"
FIGURES = {
    "speed": Figures(
        "python benchmarks/speed.py --masks ../shared/camvid/val/masks --threads 2 --table --cliffs"
        " --output benchmarks/results/speed.jsonl",
        "speed.jsonl",
        {
            "docs/performance.md": speed_table,
            "README.md": lambda: table(
                "logits | `EdgeAwareLoss()`: | `region_weight=0`:", (f"{SHORT[c]} | {ratios(c)}" for c in SHORT)
            ),
        },
        {"docs/performance.md": speed_sentences, "README.md": memory_sentences},
    ),
    "cliffs": Figures(
        "python benchmarks/speed.py --masks ../shared/camvid/val/masks --threads 2 --cliffs",
        "speed.jsonl",
        {"docs/performance.md": cliffs_table},
    ),
    "gpu": Figures(
        "python benchmarks/gpu_day.py --workers 14 --output benchmarks/results/gpu.jsonl",
        "gpu.jsonl",
        {"docs/performance.md": gpu_table},
    ),
    "step": Figures(
        "python benchmarks/speed.py step --masks ../shared/camvid/val/masks --output benchmarks/results/training.json",
        "training.json",
        sentences={"docs/training.md": step_sentences},
    ),
    "sets": Figures(
        "python benchmarks/quality.py table --split val --plan configs/quality-sets.yaml",
        "quality.jsonl",
        {
            "README.md": lambda: table(
                "data | classes: | cross-entropy: | rival: | `EdgeAwareLoss()`:",
                [
                    readme_row("camvid, pretrained network", pretrained(), (BASELINE, RIVAL, NEW)),
                    *(readme_row(data, quality()[data], (BASELINE, CONTROL, OURS)) for data in CLASSES),
                ],
            ),
            "docs/quality.md": lambda: table(
                f"data | classes: | seeds: | {HEADS}:",
                (f"{data} | {CLASSES[data]} | {seeds(data)} | {quality_rows(data)}" for data in CLASSES),
            ),
        },
        sentences={
            "README.md": lambda: [*quality_sentences(), *control_sentences()],
            "docs/settings.md": quality_sentences,
        },
    ),
    "landing": Figures(
        "python benchmarks/doc_figures.py --list",  # the commands of "sets" and "speed"
        "quality.jsonl",
        {"docs/README.md": landing_table},
    ),
    "gains": Figures(
        "python benchmarks/quality.py table --split val --plan configs/quality-sets.yaml",
        "quality.jsonl",
        {
            "docs/quality.md": lambda: table(
                "data | boundary F1 1 px: | Boundary IoU 0.005: | mIoU:",
                (f"{data} | {gains(quality()[data][OURS])}" for data in CLASSES),
            )
        },
    ),
    "region": Figures(
        "python benchmarks/quality.py table --split val --plan configs/quality-sets.yaml"
        ' --baseline "EdgeAwareLoss() (region_weight 0)"',
        "quality.jsonl",
        {
            "docs/quality.md": lambda: table(
                "data | `region_weight=0`: | boundary F1 1 px: | Boundary IoU 0.005: | mIoU:",
                (f"{data} | {scores(data, NO_REGIONS)} | {gains(quality(NO_REGIONS)[data][OURS])}" for data in CLASSES),
            )
        },
    ),
    "offsets": Figures(
        "python benchmarks/quality.py offsets configs/quality-sets.yaml --data-root DIR"
        ' --losses cross-entropy "edge-weighted CE" "EdgeAwareLoss()"',
        "offsets.jsonl",
    ),
    "rivals": Figures(
        "python benchmarks/quality.py table --split val --plan configs/quality-rivals.yaml"
        " --results benchmarks/results/quality.jsonl benchmarks/results/rivals.jsonl",
        "rivals.jsonl",
        {"docs/quality.md": lambda: trained_table("quality-rivals.yaml", "quality.jsonl", "rivals.jsonl")},
    ),
    "pretrained": Figures(
        "python benchmarks/quality.py table --split val --plan configs/quality-pretrained.yaml"
        " --results benchmarks/results/pretrained.jsonl",
        "pretrained.jsonl",
        {"docs/quality.md": lambda: trained_table("quality-pretrained.yaml", "pretrained.jsonl")},
        sentences=dict.fromkeys(("README.md", "docs/quality.md", "docs/settings.md"), pretrained_sentences),
    ),
    "ahead": Figures(
        "python benchmarks/quality.py table --split val --plan configs/quality-pretrained.yaml"
        " --results benchmarks/results/pretrained.jsonl --baseline BASELINE",
        "pretrained.jsonl",
        {
            "docs/quality.md": lambda: table(
                "next to | boundary F1 1 px: | Boundary IoU 0.005: | mIoU:",
                (f"{baseline} | {gains(pretrained(baseline)[NEW])}" for baseline in (BASELINE, RIVAL)),
            )
        },
        sentences={"docs/quality.md": holm_sentences},
    ),
    "cost": Figures(
        "python benchmarks/quality.py cost --masks ../shared/camvid/val/masks",
        "quality-cost.json",
        {"docs/quality-peers.md": cost_table},
    ),
}


# --------------------------------------------------------------------------------------------------------------- pages


def written(page: str, text: str) -> str:
    """Return a page with its tables from the results.

    Raises:
        ValueError: if the name of a table is missing in the page.
    """
    for name, figures in FIGURES.items():
        if page in figures.tables:
            mark = re.compile(rf"(<!-- figures: {name} -->\n\n)(?:\|.*\n)*\n*")
            if not mark.search(text):
                raise ValueError(f"{page}: expected the comment 'figures: {name}', but got none")
            lines = figures.tables[page]()
            text = mark.sub(lambda match, lines=lines: match[1] + "".join(f"{line}\n" for line in [*lines, ""]), text)
    return text


def missing(page: str, text: str) -> list[str]:
    """Return the sentences that a page should have and has not, in any breaking of lines."""
    plain = " ".join(text.split())
    expected = (figures.sentences.get(page, list)() for figures in FIGURES.values())
    return [sentence for sentences in expected for sentence in sentences if sentence not in plain]


def pages() -> list[str]:
    """Return the pages with figures."""
    return sorted({page for figures in FIGURES.values() for page in (*figures.tables, *figures.sentences)})


def main(root: Path = ROOT) -> int:
    """Compare or write all pages below a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables again")
    parser.add_argument("--list", action="store_true", help="print the commands and their results")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name}, {figures.results}\n    {figures.command}" for name, figures in FIGURES.items()))
        return 0
    wrong = []
    for page in pages():
        path = root / page
        text = path.read_text()
        new = written(page, text)
        if options.write:
            path.write_text(new)
        elif new != text:
            wrong.append(f"{page}: a table differs from its results; run python benchmarks/doc_figures.py --write")
        wrong += [f"{page}: expected the words: {sentence}" for sentence in missing(page, new)]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
