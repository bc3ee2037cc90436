"""`egc compare`: baselines and ours with equal budgets, in one table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from egc.cli.base import Result, Verb, command


def _arguments(parser: argparse.ArgumentParser) -> None:
    from egc.baselines.files import list_comparisons

    parser.add_argument(
        "comparison",
        metavar="NAME|FILE.toml",
        help=f"{', '.join(list_comparisons())}, or a file of your own",
    )
    parser.add_argument("--out", metavar="DIR", help="where all is kept (comparisons/NAME)")
    parser.add_argument(
        "--budget", type=float, metavar="TFLOP", help="of training, each (the file's)"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="of training (the file's)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be trained, and stop"
    )


def _run(args: argparse.Namespace) -> Result:
    from egc.baselines.files import read_file

    read_file(args.comparison)  # before PyTorch is imported
    from egc.baselines.compare import compare, read_comparison

    settings = {"budget": args.budget, "seeds": args.seeds}
    given = {name: value for name, value in settings.items() if value is not None}
    comparison = read_comparison(args.comparison, given)
    out = Path(args.out or f"comparisons/{comparison.name}")
    if args.dry_run:
        steps = {entry.name: entry.config.train.steps for entry in comparison.entries}
        lines = [f"{name}: {count:,} steps" for name, count in steps.items()]
        words: list[object] = ["compare", args.comparison, "--out", out]
        words += ["--budget", args.budget] if args.budget else []
        words += ["--seeds", *args.seeds] if args.seeds else []
        data = {**comparison.summary(), "steps": steps}
        return Result(data, "\n".join(lines), command(*words))
    from egc.baselines.tables import comparison_table, scatter_figure
    from egc.distributed import is_main
    from egc.report.figures import png

    rows = compare(comparison, out)
    table = comparison_table(rows, comparison)
    data = {**comparison.summary(), "rows": rows, "out": str(out)}
    if is_main():
        (out / "table.md").write_text(f"# {comparison.title}\n\n{table}\n")
        (out / "results.json").write_text(json.dumps(data, indent=2) + "\n")
        (out / "scatter.png").write_bytes(png(scatter_figure(rows)))
    runs = sorted(path for path in (out / "runs").iterdir() if path.is_dir())
    return Result(data, f"{table}\n\n{out / 'table.md'}", command("report", *runs))


VERB = Verb(
    "compare",
    "measure",
    "train baselines with equal budgets, measure all, and make one table; again resumes",
    [
        "egc compare ablation-digits",
        "egc compare hybrids-fashion --dry-run",
        "egc compare mine.toml --out comparisons/mine --seeds 0 1 2",
    ],
    _arguments,
    _run,
)
