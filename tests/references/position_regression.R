# Reference values for tests/test_regression.py: ordinary least squares with standard errors clustered by document.
# Made with R 4.2.2, sandwich 3.0-2, clubSandwich 0.5.8, by: Rscript position_regression.R
suppressMessages({library(sandwich); library(clubSandwich); library(splines)})

set.seed(20260601)
documents <- rep(1:9, times = c(1, 2, 1, 3, 1, 2, 1, 1, 2))
queries <- c(17, 18, 20, 23, 27, 32, 40, 52, 70, 95, 126)
data <- expand.grid(offset = c(0, 4), query = queries, sequence = seq_along(documents))
data$document <- documents[data$sequence]
x <- log2(data$query + 1)
slope <- rnorm(9, -0.3, 0.2)[data$document] + rnorm(length(documents), 0, 0.1)[data$sequence]
data$y <- round(0.5 * (data$offset == 4) + slope * x + 0.4 * sin(x) + rt(nrow(data), 4), 6)
write.csv(data[c("document", "sequence", "query", "offset", "y")], "position_regression_data.csv", row.names = FALSE)

knots <- seq(min(x), max(x), length.out = 4)
span <- function(v) ns(v, knots = knots[2:3], Boundary.knots = knots[c(1, 4)])
rows <- list()
add <- function(model, covariance, quantity, values) {
  rows[[length(rows) + 1]] <<- data.frame(model = model, covariance = covariance, quantity = quantity,
                                          parameter = seq_along(values) - 1, value = as.numeric(values))
}
for (model in c("linear", "spline")) {
  if (model == "linear") {
    fit <- lm(y ~ factor(offset) + x, data)
    to_ours <- matrix(1)
  } else {
    basis <- span(x)
    fit <- lm(y ~ factor(offset) + basis, data)
    to_ours <- sweep(span(knots)[2:4, ], 2, span(knots)[1, ])  # value at a knot minus value at the first
  }
  keep <- 3:length(coef(fit))
  add(model, "none", "coefficient", to_ours %*% coef(fit)[keep])
  covariances <- list(
    "sandwich CR0" = vcovCL(fit, cluster = data$document, type = "HC0", cadjust = FALSE),
    "sandwich G/(G-1)" = vcovCL(fit, cluster = data$document, type = "HC0", cadjust = TRUE),
    "clubSandwich CR0" = vcovCR(fit, cluster = data$document, type = "CR0"),
    "clubSandwich CR1" = vcovCR(fit, cluster = data$document, type = "CR1"))
  for (name in names(covariances)) {
    v <- to_ours %*% as.matrix(covariances[[name]])[keep, keep] %*% t(to_ours)
    add(model, name, "covariance", v)
  }
  # Tests with clubSandwich: t(G-1) per coefficient of the linear model, F(k, G-1) on wald / k ("naive-F") for all.
  cr1 <- covariances[["clubSandwich CR1"]]
  add(model, "clubSandwich CR1", "naive F",
      Wald_test(fit, constraints = constrain_zero(keep), vcov = cr1, test = "Naive-F")$Fstat)
  if (model == "linear")
    add(model, "clubSandwich CR1", "naive t p", coef_test(fit, vcov = cr1, test = "naive-t")$p_t[keep])
}
expected <- do.call(rbind, rows)
expected$value <- format(expected$value, digits = 17, trim = TRUE)
write.csv(expected, "position_regression_expected.csv", row.names = FALSE, quote = FALSE)
