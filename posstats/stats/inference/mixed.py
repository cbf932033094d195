"""A statement about a model made of statements about its heads (docs/method.md, section 4).

Heads of one layer resemble each other, so a model's mean share or slope is not the mean of independent heads. The
mixed model ``y[head] = x[head] @ beta + u[layer] + e[head] + sampling error`` has a random effect of the layer, one of
the head within its layer, and, if given, the known covariance of the estimates that went in. Its parameters are the
restricted maximum likelihood (REML) estimates. ``statsmodels.MixedLM`` agrees on the case without sampling errors and
is its oracle in the tests. It does not serve here: it cannot take known sampling errors, so its standard errors miss
what all heads share, and it judges a variance to be on the boundary by its absolute size.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from posstats.errors import DesignError, InputError, NumericalError

#: Bounds on the variances, in units of the variance of the estimates.
_LARGEST = 100.0
_SMALLEST_HEAD = 1e-8

#: A variance below this part of the variance of the estimates is reported as zero.
_ZERO = 1e-6

#: A score above this, per unit of the scaled variances, is no optimum.
_GRADIENT = 1e-3


@dataclass(frozen=True, slots=True)
class MixedFit:
    """Restricted maximum likelihood fit of heads within layers."""

    #: (parameter,): fixed effects, their standard errors, and the two-sided test against 0. The first is the mean over
    #: layers and heads if there are no covariates.
    estimate: NDArray[np.float64]
    se: NDArray[np.float64]
    t: NDArray[np.float64]
    p: NDArray[np.float64]
    #: Degrees of freedom of t: layers minus parameters, or those of the sampling errors if fewer. Exact for the mean
    #: of equally many heads per layer, conservative where layers hardly differ.
    df: int
    #: (parameter, parameter), of the fixed effects.
    covariance: NDArray[np.float64]
    #: Variance of the layer effects, and of heads within a layer beyond their sampling error.
    layer_variance: float
    head_variance: float
    #: Restricted.
    log_likelihood: float
    #: Layers and heads that entered; heads left out because their estimate was NaN.
    n_layers: int
    n_heads: int
    n_excluded: int
    #: Whether the optimiser reached a stationary point (or the boundary at zero).
    converged: bool
    #: What a reader must be told: a variance estimated as zero, no convergence, heads left out.
    notes: tuple[str, ...]

    def interval(self, level: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Confidence limits of the fixed effects, (parameter,) each, from t(df)."""
        reach = stats.t.isf((1 - level) / 2, self.df) * self.se
        return self.estimate - reach, self.estimate + reach


def fit_mixed(
    estimates: ArrayLike,
    layers: ArrayLike,
    covariates: ArrayLike | None = None,
    sampling: ArrayLike | None = None,
    sampling_df: int | None = None,
) -> MixedFit:
    """Fit one estimate per head, (head,) over all layers, with random effects of layer and head.

    NaN estimates are left out and counted. `covariates`, (head, covariate), are columns beside the intercept.
    `sampling`, (head,) or (head, head), are sampling variances of the estimates, or their covariance, with
    `sampling_df` degrees of freedom (documents minus 1). Heads are measured on the same documents, so their errors are
    correlated: the jackknife over documents gives the whole matrix, and with it the standard errors cover new
    documents as well as new heads and layers. Without it the head variance takes the sampling errors in and what all
    heads share is missed.

    Once the sampling covariance is diagonalised, the likelihood costs heads times layers squared. Patterson & Thompson
    (1971), doi:10.1093/biomet/58.3.545; Konstantopoulos (2011), doi:10.1002/jrsm.35.

    Raises
    ------
    InputError
        If shapes do not match, or ``sampling`` is not a covariance.
    DesignError
        If there are fewer than 3 layers more than covariates, every layer has a single head while the sampling errors
        are unknown, the estimates do not vary, or the covariates are collinear.
    NumericalError
        If an estimate is infinite or another input is not finite.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layers = np.repeat(np.arange(30), 9)
    >>> shares = 0.4 + rng.normal(scale=0.1, size=30)[layers] + rng.normal(scale=0.05, size=270)
    >>> fit = fit_mixed(shares, layers)
    >>> fit.df, round(fit.layer_variance**0.5, 2), round(fit.head_variance**0.5, 2), fit.notes
    (29, 0.09, 0.05, ())
    """
    y, used, layer, x, v = _check(estimates, layers, covariates, sampling)
    n_layers = np.unique(layer).size
    k = x.shape[1]
    if n_layers < k + 2:
        raise DesignError(f"{n_layers} layers are too few for {k} fixed effect(s); at least {k + 2} are needed")
    if np.linalg.matrix_rank(x) < k:
        raise DesignError("the covariates are collinear, or constant beside the intercept")
    if sampling is None and n_layers == y.size:
        raise DesignError("one head per layer cannot tell layers from heads unless the sampling errors are given")
    scale = y.var()
    if scale <= np.finfo(float).eps * (y**2).mean():
        raise DesignError("the estimates do not vary: there is nothing to model")
    model = _Restricted.of(y / np.sqrt(scale), x, layer, v / scale)
    theta, converged = _maximise(model)
    log_likelihood, _, beta, covariance = model.evaluate(theta)
    se = np.sqrt(np.diag(covariance) * scale)
    beta = beta * np.sqrt(scale)
    df = n_layers - k if sampling_df is None else min(n_layers - k, sampling_df)
    return MixedFit(
        estimate=beta,
        se=se,
        t=beta / se,
        p=2 * stats.t.sf(np.abs(beta / se), df),
        df=df,
        covariance=covariance * scale,
        layer_variance=float(theta[0] * scale),
        head_variance=float(theta[1] * scale),
        log_likelihood=float(log_likelihood - (y.size - k) / 2 * np.log(scale)),
        n_layers=n_layers,
        n_heads=y.size,
        n_excluded=int((~used).sum()),
        converged=converged,
        notes=_notes(theta, converged, int((~used).sum())),
    )


def _check(
    estimates: ArrayLike, layers: ArrayLike, covariates: ArrayLike | None, sampling: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.generic], NDArray[np.float64], NDArray[np.float64]]:
    """Estimates, which heads they belong to, their layers, the fixed-effects design and the sampling covariance."""
    y, layer = np.asarray(estimates, dtype=np.float64), np.asarray(layers)
    if y.ndim != 1 or layer.shape != y.shape:
        raise InputError(f"estimates and layers must be (head,), got shapes {y.shape} and {layer.shape}")
    used = ~np.isnan(y)
    if not used.any():
        raise DesignError("no head has an estimate: there is nothing to model")
    x = np.ones((y.size, 1))
    if covariates is not None:
        columns = np.asarray(covariates, dtype=np.float64)
        if columns.ndim != 2 or columns.shape[0] != y.size:
            raise InputError(f"covariates must be ({y.size} heads, covariates), got shape {columns.shape}")
        x = np.hstack([x, columns])
    v = np.zeros(y.size) if sampling is None else np.asarray(sampling, dtype=np.float64)
    if v.shape not in ((y.size,), (y.size, y.size)):
        raise InputError(f"sampling must be (head,) or (head, head) with {y.size} heads, got shape {v.shape}")
    y, layer, x, v = y[used], layer[used], x[used], v[used] if v.ndim == 1 else v[np.ix_(used, used)]
    if not (np.isfinite(y).all() and np.isfinite(x).all() and np.isfinite(v).all()):
        raise NumericalError("estimates must be finite or NaN, covariates and sampling errors of their heads finite")
    largest = np.abs(v).max(initial=0.0)
    lowest = v.min(initial=0.0) if v.ndim == 1 else np.linalg.eigvalsh(v)[0]
    if lowest < -1e-8 * largest or np.abs(v - v.T).max(initial=0.0) > 1e-8 * largest:
        raise InputError("sampling errors must be variances of at least 0, or a symmetric positive semidefinite matrix")
    return y, used, layer, x, v


@dataclass(frozen=True, slots=True)
class _Restricted:
    """The restricted likelihood of scaled estimates as a function of theta = (layer variance, head variance).

    In the coordinates in which the sampling covariance is diagonal, the covariance of the estimates is
    ``D + theta_0 Z Z'`` with a diagonal ``D = sampling + theta_1``: its inverse and determinant need only a
    (layer, layer) matrix.
    """

    y: NDArray[np.float64]
    x: NDArray[np.float64]
    z: NDArray[np.float64]
    sampling: NDArray[np.float64]

    @classmethod
    def of(
        cls, y: NDArray[np.float64], x: NDArray[np.float64], layer: NDArray[np.generic], v: NDArray[np.float64]
    ) -> "_Restricted":
        z = (layer[:, None] == np.unique(layer)).astype(np.float64)
        if v.ndim == 1:
            return cls(y, x, z, v)
        values, axes = np.linalg.eigh(v)
        return cls(axes.T @ y, axes.T @ x, axes.T @ z, np.maximum(values, 0))

    def evaluate(
        self, theta: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Log likelihood, its gradient in theta, the fixed effects and their covariance."""
        n, k = self.x.shape
        d = self.sampling + theta[1]
        z_over_d = self.z / d[:, None]
        inner = np.eye(self.z.shape[1]) + theta[0] * self.z.T @ z_over_d
        correction = theta[0] * np.linalg.solve(inner, z_over_d.T)  # inverse = 1 / d - z_over_d @ correction

        def inverse_times(a: NDArray[np.float64]) -> NDArray[np.float64]:
            return a / d[:, None] - z_over_d @ (correction @ a)

        weighted = inverse_times(self.x)
        information = self.x.T @ weighted
        covariance = np.asarray(np.linalg.inv(information), dtype=np.float64)
        beta = covariance @ (weighted.T @ self.y)
        whitened = inverse_times((self.y - self.x @ beta)[:, None])[:, 0]
        log_determinants = np.log(d).sum() + np.linalg.slogdet(inner)[1] + np.linalg.slogdet(information)[1]
        log_likelihood = -0.5 * ((n - k) * np.log(2 * np.pi) + log_determinants + self.y @ whitened)
        # Traces of P Z Z' and of P, with P the inverse after the fixed effects are projected out.
        of_layers = weighted.T @ self.z
        layer_trace = (self.z * inverse_times(self.z)).sum() - (of_layers * (covariance @ of_layers)).sum()
        head_trace = (1 / d).sum() - (z_over_d.T * correction).sum() - (weighted @ covariance * weighted).sum()
        along_layers = self.z.T @ whitened
        gradient = 0.5 * np.array([along_layers @ along_layers - layer_trace, whitened @ whitened - head_trace])
        return float(log_likelihood), gradient, beta, covariance


def _maximise(model: _Restricted) -> tuple[NDArray[np.float64], bool]:
    """The better of two starts, layers alike and unlike, and whether it is stationary (up to the boundary)."""
    lower = np.array([0.0, _SMALLEST_HEAD])
    best, best_value = lower, -np.inf
    for start in ((0.6, 0.4), (0.05, 0.95)):
        found = optimize.minimize(
            lambda theta: tuple(-part for part in model.evaluate(theta)[:2]),
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(low, _LARGEST) for low in lower],
            options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 500},
        )
        if -found.fun > best_value:
            best, best_value = found.x, -found.fun
    gradient = model.evaluate(best)[1]
    outward = (best <= lower) & (gradient < 0)
    return best, bool((np.abs(np.where(outward, 0.0, gradient)) <= _GRADIENT).all())


def _notes(theta: NDArray[np.float64], converged: bool, n_excluded: int) -> tuple[str, ...]:
    notes = []
    if not converged:
        notes.append("the fit did not converge: do not rely on it")
    if theta[0] < _ZERO:
        notes.append("the variance between layers is estimated as zero: heads of a layer are no more alike than others")
    if theta[1] < _ZERO:
        notes.append("the variance between heads of a layer is estimated as zero")
    if n_excluded:
        notes.append(f"{n_excluded} heads without a defined estimate are left out: the statement is about the others")
    return tuple(notes)
