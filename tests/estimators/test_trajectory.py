"""The trajectory of position 0: distances and classification against loops, and models whose answers are known."""

import itertools

import numpy as np
import pytest
from scipy import stats

import posstats as ps
from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.decoding.identification import Identifier, binomial_limits
from posstats.stats.position0 import relative_distances
from tests import constructed, position0
from tests.refused import refused


@pytest.fixture(scope="module")
def ds():
    return position0.synthetic(n=24, tokens=3)


@pytest.fixture(scope="module")
def result(ds):
    return ps.trajectory(ds, n_permutations=199)


def distances(ds, condition, depth):
    """Relative distances between sequences of different documents, by loops: within first tokens, between them."""
    x = ds.trajectory.sel(condition=condition, depth=depth).transpose("sequence", "hidden").values
    first, documents = ds.token_id.sel(condition=condition).values[:, 0], ds.document.values
    found = {True: {}, False: {}}
    for n, m in itertools.combinations(range(len(x)), 2):
        if documents[n] != documents[m]:
            size = (np.sqrt((x[n] ** 2).sum()) + np.sqrt((x[m] ** 2).sum())) / 2
            found[first[n] == first[m]][n, m] = np.sqrt(((x[n] - x[m]) ** 2).sum()) / size
    return found[True], found[False]


class TestDistances:
    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_within_and_between(self, ds, result, depth):
        within, between = distances(ds, "bos=tokens:3", depth)
        rows = result.table.query(f"condition == 'bos=tokens:3' and depth == {depth}").set_index("quantity")
        for quantity, expected in (("within", within), ("between", between)):
            values = np.array(list(expected.values()))
            assert rows.estimate[quantity] == pytest.approx(values.mean(), rel=1e-9)
            assert rows.largest[quantity] == pytest.approx(values.max(), rel=1e-9)
        difference = rows.estimate["between"] - rows.estimate["within"]
        assert rows.estimate["between_minus_within"] == pytest.approx(difference, rel=1e-9)

    def test_documents_are_left_out_whole(self):
        ds = position0.synthetic(n=8, sequences_per_document=[1, 2, 1, 1, 3, 1, 1, 2])
        with pytest.warns(ps.errors.FewDocumentsWarning):
            table = ps.trajectory(ds, n_folds=3, n_permutations=9, method="jackknife").table
        row = table.query("condition == 'bos=tokens:2' and quantity == 'between' and depth == 1").iloc[0]
        _, between = distances(ds, "bos=tokens:2", 1)
        documents = ds.document.values
        left_out = [
            np.mean([x for (n, m), x in between.items() if label not in (documents[n], documents[m])])
            for label in np.unique(documents)
        ]
        error = np.sqrt(7 / 8 * ((left_out - np.mean(left_out)) ** 2).sum())
        assert row.se == pytest.approx(error, rel=1e-9)
        assert row.high - row.estimate == pytest.approx(stats.t.ppf(0.975, 7) * error, rel=1e-9)

    def test_constant_under_one_first_token(self, result):
        rows = result.table.query("condition == 'baseline'")
        assert set(rows.quantity) == {"departure", "within"}
        assert rows.holds.all()
        assert (rows.estimate < 1e-5).all()

    def test_every_sequence_a_token_of_its_own(self, ds):
        own = ds.copy(deep=True)
        rng = np.random.default_rng(0)
        own["trajectory"].loc[{"condition": "bos@4"}] = rng.normal(size=own.trajectory.shape[1:])
        table = ps.trajectory(own, n_permutations=9).table
        assert set(table[table.condition == "bos@4"].quantity) == {"departure", "between"}

    def test_near_vectors_keep_their_digits(self):
        x = np.ones((2, 50))
        x[1, 0] += 1e-12
        assert relative_distances(x)[0, 1] == pytest.approx(1e-12 / np.sqrt(50), rel=1e-3)
        assert (relative_distances(np.zeros((2, 3))) == 0).all()


class TestClosedness:
    def test_mean_and_largest(self, ds, result):
        departure = ds.trajectory_departure.sel(condition="bos=token:7", depth=2).values
        row = result.table.query("condition == 'bos=token:7' and quantity == 'departure' and depth == 2").iloc[0]
        assert (row.estimate, row.largest) == pytest.approx((departure.mean(), departure.max()))
        limits = stats.ttest_1samp(departure, 0).confidence_interval(0.95)
        np.testing.assert_allclose([row.low, row.high], limits, rtol=1e-6)

    @pytest.mark.parametrize(
        ("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4), ("float16", 1e-2), ("bfloat16", 8e-2)]
    )
    def test_tolerance_is_that_of_the_number_format(self, ds, dtype, tolerance):
        one = ds.isel(condition=[0]).assign_attrs(dtype=dtype)
        rows = ps.trajectory(one).table.query("quantity == 'departure'")
        assert (rows.tolerance == tolerance).all()
        assert (rows.holds == (rows.largest <= tolerance)).all()
        assert rows.holds.all() == (dtype != "float64")

    def test_one_sequence_that_leaks_is_enough(self, ds):
        leaky = ds.isel(condition=[0]).copy(deep=True).assign_attrs(dtype="float32")
        leaky["trajectory_departure"].values[0, 5, 2] = 2e-4
        rows = ps.trajectory(leaky).table.query("quantity == 'departure'").set_index("depth")
        assert rows.holds.tolist() == [True, True, False]

    def test_undefined_departure(self, ds):
        undefined = ds.isel(condition=[0]).copy(deep=True)
        undefined["trajectory_departure"].values[0, :, 0] = np.nan
        row = ps.trajectory(undefined).table.query("quantity == 'departure'").iloc[0]
        assert np.isnan(row.estimate)
        assert "zero vector" in row.note


def nearest_centroid(features, chosen_attention, first, documents, fold, epsilon, wanted):
    """Accuracy per document, by loops over sequences, classes and features."""
    right = {label: [] for label in np.unique(documents)}
    for k in np.unique(fold):
        training = fold != k
        heads = [h for h in range(features.shape[1]) if (chosen_attention[training, h].mean() > epsilon) == wanted]
        x = features[:, heads].reshape(len(features), -1)
        x = (x - x[training].mean(axis=0)) / x[training].std(axis=0)
        for n in np.flatnonzero(fold == k):
            distance = {
                token: ((x[n] - x[training & (first == token)].mean(axis=0)) ** 2).sum()
                for token in np.unique(first[training])
            }
            right[documents[n]].append(min(distance, key=distance.get) == first[n])
    return np.array([np.mean(values) for values in right.values()])


class TestIdentification:
    @pytest.mark.parametrize("per_document", [1, [1, 2] * 12])
    def test_against_loops(self, per_document):
        ds = position0.synthetic(n=24, tokens=3, sequences_per_document=per_document)
        first = ds.token_id.sel(condition="bos=tokens:3").values[:, 0]
        output = ds["head_output"].sel(condition="bos=tokens:3")
        output.values[:, 0, :, 1] += 0.8 * (first - 11)[:, None]
        labels, code = np.unique(ds.document.values, return_inverse=True)
        by_document = first[np.unique(code, return_index=True)[1]]
        identifier = Identifier.of(by_document, code, n_folds=4, n_permutations=49, seed=3)
        shape = ds.sizes["sequence"], ds.sizes["head"]
        attention = np.array([position0.attention(ds, "bos=tokens:3", n, 0, h) for n, h in np.ndindex(shape)])
        attention = attention.reshape(shape)
        features = output.values[:, 0]
        found = identifier.identify(identifier.grams(features, attention, 0.3))
        for one, wanted in zip(found, (True, False), strict=True):
            expected = nearest_centroid(features, attention, first, ds.document.values, identifier.fold, 0.3, wanted)
            np.testing.assert_allclose(one.by_document, expected)
            for permuted, accuracy in zip(identifier.labels[1:4], one.null[:3], strict=True):
                relabelled = nearest_centroid(
                    features, attention, permuted[code], ds.document.values, identifier.fold, 0.3, wanted
                )
                assert accuracy == pytest.approx(relabelled.mean())
            assert one.p == (np.sum(one.null >= one.accuracy - 1e-12) + 1) / 50
        assert len(labels) == len(found[0].by_document)

    def test_random_features_are_not_identified(self, result):
        table = result.identification.table
        assert set(table.chance) == {1 / 3}
        assert table.layers.tolist() == ["all", "all", "0", "0", "1", "1"]
        assert (table.q > 0.05).all()
        assert table.estimate.between(table.low, table.high).all()

    def test_permutation_test_keeps_its_level(self):
        """Of features without information at most 5% are identified at the 5% level, within three standard errors."""
        rng = np.random.default_rng(0)
        code, p = np.arange(20), []
        identifier = Identifier.of(code % 4, code, n_folds=5, n_permutations=99, seed=0)
        for _ in range(300):
            grams = identifier.grams(rng.normal(size=(20, 1, 3)), np.ones((20, 1)), 0.3)
            p.append(identifier.identify(grams)[0].p)
        assert np.mean(np.array(p) <= 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)

    def test_exact_limits_are_scipys(self):
        for k, n in ((0, 24), (24, 24), (7, 30)):
            expected = stats.binomtest(k, n).proportion_ci(0.9, method="exact")
            np.testing.assert_allclose(binomial_limits(k / n, n, 0.9), [expected.low, expected.high], atol=1e-12)

    def test_rounding_is_no_information(self):
        """A feature that is constant but for rounding that follows the token must not give it away."""
        code = np.arange(20)
        features = np.random.default_rng(0).normal(size=(20, 1, 3))
        features[:, 0, 1] = 5 + 1e-7 * (code % 4)
        identifier = Identifier.of(code % 4, code, n_folds=5, n_permutations=99, seed=0)
        assert identifier.identify(identifier.grams(features, np.ones((20, 1)), 0.3))[0].accuracy < 0.6
        features[:, 0, 1] = 5 + 1e-3 * (code % 4)
        features[:, 0, [0, 2]] = 1.0
        assert identifier.identify(identifier.grams(features, np.ones((20, 1)), 0.3))[0].accuracy == 1

    def test_no_such_head(self, ds):
        table = ps.trajectory(ds.sel(condition=["bos=tokens:3"]), epsilon=0.9999, n_permutations=9).identification.table
        rows = table[table.heads == "sink-reading"]
        assert rows[["estimate", "low", "high", "p", "q"]].isna().all(axis=None)
        assert (rows.note == "no such head in the training documents of some fold").all()
        assert table[table.heads == "other"].estimate.notna().all()

    def test_without_repeated_tokens_there_is_none(self, ds):
        found = ps.trajectory(ds.isel(condition=[0])).identification
        assert len(found.table) == 0
        assert any("bos=tokens:K" in note for note in found.notes)

    def test_not_finite(self, ds):
        broken = ds.copy(deep=True)
        broken["head_output"].values[1, 0, 0, 0, 0] = np.nan
        refused(NumericalError, "pass on", ps.trajectory, broken)

    def test_one_token_per_document(self):
        ds = position0.synthetic(n=24, tokens=3, sequences_per_document=2)
        ds["token_id"].values[1, 0, 0] += 1
        refused(DesignError, "one per document", ps.trajectory, ds)

    def test_tokens_of_single_documents(self):
        refused(DesignError, "two documents each", ps.trajectory, position0.synthetic(n=24, tokens=20))


class TestResult:
    def test_bad_input(self, ds):
        refused(InputError, "trajectory_departure", ps.trajectory, ds.drop_vars("trajectory_departure"))
        refused(InputError, "head_output", ps.trajectory, ds.drop_vars("head_output"))
        refused(InputError, "from 3 to", ps.trajectory, ds, n_folds=2)
        refused(InputError, "epsilon", ps.trajectory, ds, epsilon=0.0)
        refused(InputError, "float8", ps.trajectory, ds.assign_attrs(dtype="float8"))

    def test_wrong_arithmetic_cannot_exist(self, result):
        wrong = result.table.copy()
        wrong.loc[0, "holds"] = False
        with pytest.raises(NumericalError, match="does not follow"):
            type(result)(wrong, result.settings, identification=result.identification)
        table = result.identification.table.copy()
        table.loc[0, "high"] = table.low[0]
        with pytest.raises(NumericalError, match="outside its interval"):
            type(result.identification)(table, result.identification.settings)

    def test_faces(self, result):
        assert result.to_dataset().sizes["depth"] == 3
        assert result.identification.to_dataset().sizes["layers"] == 3
        assert "tolerance" in result.summary()


class TestConstructed:
    CONDITIONS = ("baseline", "bos=none", "bos=tokens:4", "trajectory=token:5@1")

    def dump(self, path, **options):
        model, seqs = constructed.build(**options), constructed.sequences(n=32)
        ps.dump(model, seqs, path, conditions=self.CONDITIONS, offsets=(0, 1), progress=False)
        with ps.open_dump(path) as ds:
            return ps.trajectory(ds, n_permutations=199)

    def test_closed_constant_and_a_fingerprint(self, tmp_path):
        table = self.dump(tmp_path / "d.h5").table
        assert (table.tolerance.dropna() == 1e-9).all()
        judged = table.dropna(subset=["tolerance"])
        assert judged.holds.astype(bool).all()
        assert set(judged[judged.condition == "baseline"].quantity) == {"departure", "within"}
        apart = table[table.quantity == "between_minus_within"]
        assert apart.depth.tolist() == [0, 1, 2]
        assert (apart.low > 0.1).all()
        assert (table[(table.condition == "bos=none") & (table.quantity == "between")].low > 0.1).all()

    def test_first_token_that_is_passed_on(self, tmp_path):
        rows = self.dump(tmp_path / "d.h5", reads="position").identification.table.set_index(["layers", "heads"])
        assert rows.estimate["all", "sink-reading"] == 1
        assert rows.p["1", "sink-reading"] == 1 / 200
        assert rows.low["1", "sink-reading"] > 0.85
        assert "every document" in rows.note["1", "sink-reading"]
        assert rows.n_heads["all", "sink-reading"] == 1
        assert np.isnan(rows.estimate["0", "sink-reading"])

    @pytest.mark.parametrize("passes", ["constant", "nothing"])
    def test_first_token_that_is_not(self, tmp_path, passes):
        path = tmp_path / "d.h5"
        rows = self.dump(path, reads="position", passes=passes).identification.table.set_index(["layers", "heads"])
        assert rows.p["1", "sink-reading"] > 0.05
        assert rows.low["1", "sink-reading"] < 0.25

    def test_heads_that_look_for_bos_read_nothing_without_it(self, tmp_path):
        table = self.dump(tmp_path / "d.h5").identification.table
        assert table[table.heads == "sink-reading"].estimate.isna().all()
