"""The ledger of one dump: every claim about a single model, with the verdict that follows from its criterion."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.results.verdicts import CRITERIA, NOT_TESTABLE, WHOLE
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.tables import Table


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    ledger = ps.claims(ds, **inference.options())
    claims = ledger.table[ledger.table.part == WHOLE]
    untested = claims[claims.verdict == NOT_TESTABLE]
    by_verdict = claims.groupby("verdict", sort=False).claim.agg(", ".join)
    shown = ["claim", "part", "quantity", "condition", "estimate", "low", "high", "q", "verdict"]
    return Findings(
        closing=Table(
            ledger.table[shown],
            f"Claims: {ledger.table.model.iloc[0]}, {ledger.table.dump.iloc[0]}",
            notes=(
                "criteria were fixed in advance; docs/claims.md says how a verdict follows.",
                *(f"{row.claim} is {row.verdict}: {row.reason}." for row in untested.itertuples()),
            ),
            level=inference.level,
        ),
        tables={"claims": ledger},
        figures={"verdicts": figures.verdict_grid(ledger)},
        headline=[
            Quantity(
                f"claims {verdict}",
                "claims",
                int((claims.verdict == verdict).sum()),
                note=f"{names}; of {len(CRITERIA)}",
            )
            for verdict, names in by_verdict.items()
        ],
    )
