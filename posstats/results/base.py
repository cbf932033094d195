"""Result objects: one tidy table each, which feeds data frame, dataset, text and HTML, and checks its arithmetic."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from html import escape
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import labels, several, shown, text, whole_number
from posstats.errors import InputError, NumericalError
from posstats.results.cells import View, unit_text, view_of
from posstats.results.columns import COLUMNS
from posstats.stats.inference.options import INTERVAL_METHODS
from posstats.vocabulary import RESIDUAL, RESIDUAL_TERMS, TERMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from statsmodels.regression.linear_model import RegressionResultsWrapper

    from posstats.results.table import Table

#: Columns that say which estimate a row is.
KEYS = ("condition", "contrast", "layer", "head", "queries", "offset", "term")
#: Columns in the unit of the result itself.
IN_UNITS = (
    "estimate", "se", "low", "high", "gap_low", "gap_high", "boot_low", "boot_high", "order_low", "order_high",
)  # fmt: skip
#: Rows that a view of a result shows.
SHOWN = 40
#: The queries of most estimates.
ALL_QUERIES = "max offset < i < Q"
_EARLY_OR_BIN = "those of the bin (early: 2 <= i < 16), departing from the steady state"
_ADJUSTMENTS = {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli", "holm": "Holm"}


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Estimates with intervals in one tidy table.

    Attributes
    ----------
    table : pandas.DataFrame
        One row per estimate. Key columns (`condition`, `layer`, `head`, `queries`, `term`, those that apply), then
        `estimate`, `se`, `low`, `high` and whatever the result adds; raw numbers, never rounded.
    settings : dict
        What the numbers rest on: level, interval method, replicates, seed, documents, sequences, offsets, family of q.
    notes : tuple of str
        Warnings that belong beside the numbers; a :class:`posstats.vocabulary.Note` says of which kind.
    """

    table: pd.DataFrame
    settings: dict[str, object]
    notes: tuple[str, ...] = field(default=())

    title: ClassVar[str] = "Result"
    #: Unit of estimates, errors and limits; empty where every row has its own, in the column `unit`.
    units: ClassVar[str] = ""
    #: Column -> unit, of the columns that have another one.
    column_units: ClassVar[dict[str, str]] = {}
    #: Columns that say which estimate a row is; those of :data:`KEYS` that the table has, where empty.
    key_columns: ClassVar[tuple[str, ...]] = ()
    #: Which queries the rows are about.
    queries: ClassVar[str] = ""
    #: The test of p and its null hypothesis, in quotation marks; in braces, settings of the result.
    null: ClassVar[str] = ""
    #: The rows over which q adjusts p.
    family: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise NumericalError where an estimate lies outside a symmetric interval or the parts miss the whole."""
        rows = self.table.dropna(subset=["estimate", "low", "high"])
        if (rows.low > rows.high).any():
            raise NumericalError(f"{self.title}: an interval has its lower limit above its upper limit.")

    @property
    def keys(self) -> list[str]:
        """Key columns of this table."""
        return list(self.key_columns) or [name for name in KEYS if name in self.table]

    @property
    def all_units(self) -> dict[str, str]:
        """Column -> unit, those of the estimates first."""
        return dict.fromkeys(IN_UNITS, self.units) | self.column_units

    @property
    def rests_on(self) -> dict[str, str]:
        """What the numbers rest on.

        Those that apply of "intervals" (their method), "queries", "p" (test and null hypothesis) and "q" (adjustment
        and family).

        Examples
        --------
        >>> import posstats as ps
        >>> result = ps.leakage(ps.simulate(n=30, length=32, seed=0).dataset, octaves=False, n_permutations=99)
        >>> result.rests_on["p"]
        'one-sided sign-flip test of "no absolute position" (99 flips)'
        """
        settings = self.settings
        intervals = str(settings.get("standard_errors", ""))
        if "interval" in settings:
            intervals = INTERVAL_METHODS[str(settings["interval"])]
            if "n_resamples" in settings:  # a jackknife draws no replicates
                intervals += f"; {settings['n_resamples']} bootstrap replicates, seed {settings['seed']}"
        adjustment = _ADJUSTMENTS.get(str(settings.get("adjustment")), "")
        family = f"{adjustment} over {self.family}" if adjustment and self.family else ""
        stated = {"intervals": intervals, "queries": self.queries, "p": self.null.format_map(settings), "q": family}
        return {name: text for name, text in stated.items() if text}

    def to_dataframe(self) -> pd.DataFrame:
        """Return a copy of the tidy table."""
        return self.table.copy()

    def sel(self, **where: object) -> Self:
        """Return the rows of which key columns have given values, as a result of the same kind.

        Intervals, p and q stay those of the whole: a family of q-values is not made smaller by a look at a part of it.

        Parameters
        ----------
        **where
            Key column -> the value, or a list of values, such as ``term="mask", layer=[0, 1]``.

        Returns
        -------
        Result

        Raises
        ------
        InputError
            If a name is not a key column of this result, or no row has the value.

        Examples
        --------
        >>> import posstats as ps
        >>> result = ps.shares(ps.simulate(n=30, length=32, seed=0).dataset, octaves=False)
        >>> result.sel(term=["mask", "residual"]).table.term.tolist()
        ['mask', 'residual']
        """
        rows = self.table
        for name, value in where.items():
            if name not in self.keys:
                raise InputError(f"{self.title} has no key column {name!r}; it has {', '.join(self.keys)}.")
            there = pd.unique(self.table[name]).tolist()
            single = isinstance(value, str) or not isinstance(value, Iterable)
            values = [value] if single else several(name, value, "labels")
            if absent := [one for one in values if not any(_same(one, label) for label in there)]:
                raise InputError(f"{self.title} has no {name} {shown(absent[0])}; it has {', '.join(map(str, there))}.")
            rows = rows[rows[name].isin(values)]
        if rows.empty:
            raise InputError(f"{self.title}: {where} selects no row.")
        part = copy(self)  # the whole has been checked; sums over terms cannot be checked in a part
        object.__setattr__(part, "table", rows.reset_index(drop=True))
        return part

    def to_dataset(self) -> xr.Dataset:
        """Return the table as a dataset: key columns become dimensions, the others variables with units.

        Labels keep the order of the rows. Where a combination of labels has no row, numbers and truth values (1 and 0)
        are NaN and texts empty. Title, settings and notes are attributes; the dataset can be written as netCDF.
        """
        ds = self._as_arrays()
        units = {name: unit or "see the variable unit" for name, unit in self.all_units.items()}
        stated = self.rests_on
        for name in map(str, ds.variables):
            if ds[name].dtype.kind == "O" and name not in ds.dims:
                ds[name] = ds[name].dims, _plain(ds[name].to_numpy())
            comment = stated.pop(name, None) if name in ("p", "q") else None  # null hypothesis, family
            described = {"units": units.get(name), "long_name": COLUMNS.get(name), "comment": comment}
            ds[name].attrs = {key: text for key, text in described.items() if text}
        facts = {"title": self.title, **stated, "notes": list(map(str, self.notes))}
        ds.attrs = {key: _attribute(value) for key, value in (self.settings | facts).items() if value != []}
        return ds

    def _as_arrays(self) -> xr.Dataset:
        labels = {name: pd.unique(self.table[name]) for name in self.keys}
        return self.table.set_index(self.keys).to_xarray().reindex(labels)

    def summary(self, rows: int = SHOWN) -> str:
        """Return the table as text, at most `rows` rows, with settings and notes."""
        rows = whole_number("rows", rows)
        return "\n".join([self._heading(), self._view(rows).text(), *self._below(rows)])

    def to_markdown(self, *, columns: Sequence[str] | None = None, where: Mapping[str, object] | None = None) -> str:
        """Return the table as Markdown, with units and footnotes; `columns` and `where` as in :meth:`to_latex`."""
        from posstats.results.table import to_markdown

        return to_markdown(self._chosen(columns, where))

    def to_latex(
        self,
        label: str = "",
        *,
        columns: Sequence[str] | None = None,
        where: Mapping[str, object] | None = None,
        caption: str | None = None,
    ) -> str:
        r"""Return the table as LaTeX for booktabs, everything escaped.

        Parameters
        ----------
        label : str
            Label for ``\ref``, without the leading ``tab:``.
        columns : sequence of str, optional
            Columns of the table, in this order; all of them by default.
        where : mapping, optional
            Key column -> the value, or a list of values, of the rows to write, as :meth:`sel` takes them.
        caption : str, optional
            The title of the result by default.

        Returns
        -------
        str

        Raises
        ------
        InputError
            If a column is not there or is given twice, or no row is selected.

        Examples
        --------
        >>> import posstats as ps
        >>> result = ps.shares(ps.simulate(n=30, length=32, seed=0).dataset, octaves=False)
        >>> text = result.to_latex(columns=["term", "estimate", "low", "high"], where={"term": "mask"}, caption="Mask")
        >>> [line for line in text.splitlines() if line.startswith(("term", r"\caption"))]
        ['\\caption{Mask}', 'term & estimate & 95\\% interval \\\\']
        """
        from posstats.results.table import to_latex

        table = self._chosen(columns, where)
        return to_latex(table if caption is None else replace(table, title=text("caption", caption)), label)

    def plot(self, ax: "Axes | None" = None, label: str | None = None) -> "Axes":
        """Draw the estimates with their intervals, one row below the other in the order of the table.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw into, a result beside another for example; a new figure by default.
        label : str, optional
            Name of this result in the legend.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        InputError
            If there is no row, or there are more than 200, or an argument is of another type.
        """
        from posstats.results.forest import forest

        return forest(self, ax, label)

    def _chosen(self, columns: Sequence[str] | None, where: Mapping[str, object] | None) -> "Table":
        """Some rows and columns as a table."""
        from posstats.results.table import table_of

        if not isinstance(where, Mapping | None):
            raise InputError(f"where must map key columns to values, not {shown(where)}.")
        table = table_of(self.sel(**{text("where", name): value for name, value in (where or {}).items()}))
        names = labels("columns", columns, table.frame.columns.tolist(), "text")
        units = {name: unit for name, unit in table.units.items() if name in names}
        return replace(table, frame=table.frame[names], units=units)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{escape(line)}</p>" for line in self._below(SHOWN))
        heading, table = escape(self._heading()), self._view(SHOWN).html()
        return f'<div style="overflow-x:auto"><h4>{heading}</h4>{table}{below}</div>'

    def _heading(self) -> str:
        units = unit_text(self.units)
        return f"{self.title} ({units})" if units else self.title

    def _view(self, rows: int) -> View:
        return view_of(self.table.head(rows), self.column_units)

    def _below(self, rows: int) -> list[str]:
        """What stands below the rows shown: how many are not, what they rest on, what to keep in mind."""
        hidden = len(self.table) - rows
        beside = [f".{one.name}" for one in fields(self) if one.repr and one.name not in Result.__slots__]
        return [
            *([f"... {hidden} more rows in .table"] if hidden > 0 else []),
            ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in self.settings.items()),
            *([f"more in {' and '.join(beside)}"] if beside else []),
            *(f"note: {note}" for note in self.notes),
        ]


def check_result(result: object, kind: type[Result], of: str) -> None:
    """Raise InputError unless a result is of the kind that a function takes; `of` says what returns it."""
    if not isinstance(result, kind):
        raise InputError(f"This takes the {kind.__name__} that {of} returns, not {shown(result)}.")


def _same(value: object, label: object) -> bool:
    """Whether a value is a label of a table; True is not 1."""
    alike = isinstance(value, bool | np.bool_) == isinstance(label, bool | np.bool_)
    return alike and np.isscalar(value) and bool(value == label)


def _plain(values: NDArray[np.object_]) -> NDArray[np.generic]:
    """Texts with "" for what is absent, or numbers and truth values with NaN."""
    flat = pd.Series(values.ravel(), dtype=object)
    text = any(isinstance(value, str) for value in flat)
    plain = flat.where(flat.notna(), "").to_numpy(object) if text else flat.to_numpy(np.float64, na_value=np.nan)
    return plain.reshape(values.shape)


def _attribute(value: object) -> object:
    """A setting as netCDF can hold it: numbers, texts and sequences of them as they are, the rest as text."""
    if isinstance(value, list | tuple):
        return [_attribute(one) for one in value]
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else str(value)


def _wide(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column with the terms side by side."""
    keys = [name for name in KEYS if name in table and name != "term"]
    return table.pivot_table(index=keys, columns="term", values=column, dropna=False, sort=False)


def _require_sum(title: str, parts: pd.Series, whole: pd.Series, scale: pd.Series) -> None:
    error = ((parts - whole).abs() / (1.0 + scale.abs())).max()
    if error > 1e-6:
        raise NumericalError(f"{title}: the parts miss the whole by {error:.3g}; this result cannot be trusted.")


@dataclass(frozen=True, slots=True, repr=False)
class LeakageResult(Result):
    """How much absolute position log attention carries: ``C(y, y)`` summed over offsets, in nats squared.

    Columns added: `p` of the sign-flip test of "no absolute position", `q` over the family of rows with the same
    condition and queries, `method`, and beside pooled rows the limits of a bootstrap, `boot_low` and `boot_high`.
    """

    title: ClassVar[str] = "Absolute-position leakage"
    units: ClassVar[str] = "nats^2"
    column_units: ClassVar[dict[str, str]] = {"content_scatter": "nats"}
    queries: ClassVar[str] = (
        f"{ALL_QUERIES} (bin all), summed over the offsets: compare leakage at the same offsets only"
    )
    null: ClassVar[str] = 'one-sided sign-flip test of "no absolute position" ({n_permutations} flips)'
    family: ClassVar[str] = "all rows of the same condition and queries"


@dataclass(frozen=True, slots=True, repr=False)
class ShareResult(Result):
    """Whose the leakage is: ``C(term, y) / C(y, y)``, a ratio of sums over the pooled heads and layers.

    Beside the terms, `mask_first` and `mask_last` are the mask's share in either order. Confidence sets are intervals,
    two rays or the line (`set`, `gap_low`, `gap_high`). Columns added: `method`, the range over the orders `order_low`
    and `order_high`, two-sided `p` and `q` of "the share is 0", `leakage` (nats squared), `leakage_q`, and `note`.
    """

    title: ClassVar[str] = "Shares of absolute-position leakage"
    units: ClassVar[str] = "1"
    column_units: ClassVar[dict[str, str]] = {"leakage": "nats^2", "content_scatter": "nats"}
    queries: ClassVar[str] = f"{ALL_QUERIES} (bin all)"
    null: ClassVar[str] = 'two-sided test of "the share is 0"'
    family: ClassVar[str] = "all rows of the same condition, queries and term"

    def check(self) -> None:
        """Raise NumericalError unless the four shares sum to 1 and the residual to its two terms."""
        Result.check(self)
        wide = _wide(self.table, "estimate").dropna()
        if len(wide):
            scale = wide.abs().max(axis=1)
            _require_sum(self.title, wide[list(TERMS)].sum(axis=1), pd.Series(1.0, wide.index), scale)
            _require_sum(self.title, wide[list(RESIDUAL_TERMS)].sum(axis=1), wide[RESIDUAL], scale)


@dataclass(frozen=True, slots=True, repr=False)
class SizeResult(Result):
    """How much absolute position each term carries by itself: ``C(term, term)`` summed over offsets, nats squared.

    Columns added: sign-flip `p` and `q` of "the term has no absolute position", for the terms that can be tested.
    """

    title: ClassVar[str] = "Size of terms"
    units: ClassVar[str] = "nats^2"
    column_units: ClassVar[dict[str, str]] = {"content_scatter": "nats"}
    queries: ClassVar[str] = f"{ALL_QUERIES} (bin all), summed over the offsets: compare sizes at the same offsets only"
    null: ClassVar[str] = (
        'one-sided sign-flip test of "the term has no absolute position" ({n_permutations} flips), for log attention, '
        "redistribution and residual"
    )
    family: ClassVar[str] = "all rows of the same condition, queries and term"


@dataclass(frozen=True, slots=True, repr=False)
class MagnitudeResult(Result):
    """How far each term is from the steady state: pair product of the term itself.

    Columns added: sign-flip `p` and `q` of "the departure has no mean in this bin", for the terms that can be tested.
    """

    title: ClassVar[str] = "Magnitude of terms"
    units: ClassVar[str] = "nats^2"
    queries: ClassVar[str] = _EARLY_OR_BIN
    null: ClassVar[str] = (
        'one-sided sign-flip test of "the departure has no mean in the bin" ({n_permutations} flips), for '
        "log attention, redistribution and residual"
    )
    family: ClassVar[str] = "all rows of the same condition, queries and term"


@dataclass(frozen=True, slots=True, repr=False)
class RemovalResult(Result):
    """How much of the residual-stream magnitude a condition removes: 1 - magnitude(condition) / magnitude(baseline).

    Confidence sets are intervals, two rays or the line (`set`, `gap_low`, `gap_high`). Columns added: `method`,
    two-sided `p` and `q` of "nothing is removed", `magnitude`, `baseline_magnitude` and what is `removed` with its
    error (nats squared), `baseline_q` of "there is nothing to remove", and `note`.
    """

    title: ClassVar[str] = "Removal of the residual-stream component"
    units: ClassVar[str] = "1"
    column_units: ClassVar[dict[str, str]] = dict.fromkeys(
        ("magnitude", "baseline_magnitude", "removed", "removed_se"), "nats^2"
    )
    queries: ClassVar[str] = _EARLY_OR_BIN
    null: ClassVar[str] = 'two-sided test of "nothing is removed"'
    family: ClassVar[str] = "all rows of the same condition and queries"

    def check(self) -> None:
        """Raise NumericalError unless the estimate follows from the two magnitudes."""
        Result.check(self)
        rows = self.table.dropna(subset=["estimate"])
        if len(rows):
            expected = 1 - rows.magnitude / rows.baseline_magnitude
            _require_sum(self.title, expected, rows.estimate, rows.estimate)


@dataclass(frozen=True, slots=True, repr=False)
class PositionResult(Result):
    """Slope of each term on log2(i + 1), clustered by document, and the joint test of a natural spline.

    Columns added: `t`, `df`, `p`, `q` of the slope; `spline_f`, `spline_df1`, `spline_df2`, `spline_p`, `spline_q`
    (approximate Hotelling). `estimate` is in nats per doubling of position.

    Attributes
    ----------
    refit : callable, optional
        Fit one slope on the rows of the dataset again, given its condition, layer, head and term; :meth:`model` needs
        it. It refers to the dataset, which is read anew.
    """

    refit: "Callable[..., RegressionResultsWrapper] | None" = field(default=None, repr=False)

    title: ClassVar[str] = "Position regression"
    units: ClassVar[str] = "nats per doubling of position"
    queries: ClassVar[str] = ALL_QUERIES
    null: ClassVar[str] = 'two-sided t test of "the slope is 0"; spline p, F test of "all spline coefficients are 0"'
    family: ClassVar[str] = "all heads of the same condition and term"

    def model(self, *, layer: int, head: int, term: str, condition: str | None = None) -> "RegressionResultsWrapper":
        """Return the regression behind one row of the table as a fitted ``statsmodels`` results object.

        Ordinary least squares on the rows (sequence, query, offset) of one head, read again from the dataset. The last
        parameter, ``log2(i+1)``, has the estimate, standard error, p-value and interval of the table; the others are
        the intercepts of the offsets. ``.summary()`` prints them.

        Parameters
        ----------
        layer, head : int
            Labels of the layer and of its head.
        term : str
            "log_attention" or one of its terms.
        condition : str, optional
            Needed where the table has several.

        Returns
        -------
        statsmodels.regression.linear_model.RegressionResultsWrapper

        Raises
        ------
        InputError
            For a label that is not in the table, a term that does not vary between documents (the table has no p-value
            for it), or a result without its dataset.
        DumpError
            If the dump was closed.

        Examples
        --------
        >>> import posstats as ps
        >>> tests = ps.position_tests(ps.simulate(n=30, length=64, seed=0).dataset)
        >>> fit = tests.model(layer=0, head=1, term="sink")
        >>> row = tests.table.query("layer == 0 and head == 1 and term == 'sink'").iloc[0]
        >>> bool(abs(fit.params["log2(i+1)"] - row.estimate) < 1e-10), bool(abs(fit.pvalues.iloc[-1] - row.p) < 1e-10)
        (True, True)
        """
        chosen = self.table
        given = {"condition": condition, "layer": layer, "head": head, "term": term}
        for name, value in given.items():
            labels = chosen[name].unique().tolist()
            if name == "condition" and value is None and len(labels) == 1:
                given[name] = value = labels[0]
            if type(value) is bool or not isinstance(value, str | Integral) or value not in labels:
                raise InputError(f"{name} must be one of {', '.join(map(str, labels))}, not {value!r}.")
            chosen = chosen[chosen[name] == value]
        if chosen.p.isna().all():
            raise InputError(
                f"term {term!r} does not vary between documents in head {head} of layer {layer}: it has no test; "
                "choose a term with a p-value in the table."
            )
        if self.refit is None:
            raise InputError("This result has no dataset to read the rows from; call position_tests on the dump again.")
        return self.refit(**given)

    def check(self) -> None:
        """Raise NumericalError unless the slopes of the four terms add up to the slope of log attention."""
        Result.check(self)
        wide = _wide(self.table, "estimate")
        scale = wide.abs().max(axis=1)
        _require_sum(self.title, wide[list(TERMS)].sum(axis=1), wide["log_attention"], scale)
