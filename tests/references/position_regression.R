# Reference values for tests/stats/test_regression.py: ordinary least squares with CR2 clustered by document.
# Made with R 4.2.2, clubSandwich 0.5.8, by: Rscript position_regression.R
suppressMessages({library(clubSandwich); library(splines)})

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
  cr2 <- vcovCR(fit, cluster = data$document, type = "CR2")
  add(model, "CR2", "covariance", to_ours %*% as.matrix(cr2)[keep, keep] %*% t(to_ours))
  # Bell-McCaffrey degrees of freedom per coefficient, as ours are written; AHT for all of them together.
  constraints <- cbind(matrix(0, nrow(to_ours), 2), to_ours)
  contrasts <- linear_contrast(fit, vcov = cr2, contrasts = constraints)
  add(model, "CR2", "df", contrasts$df)
  if (model == "linear")
    add(model, "CR2", "p", coef_test(fit, vcov = cr2, test = "Satterthwaite")$p_Satt[keep])
  joint <- Wald_test(fit, constraints = constrain_zero(keep), vcov = cr2, test = "HTZ")
  add(model, "CR2", "joint F", joint$Fstat)
  add(model, "CR2", "joint df", joint$df_denom)
  add(model, "CR2", "joint p", joint$p_val)
}
expected <- do.call(rbind, rows)
expected$value <- format(expected$value, digits = 17, trim = TRUE)
write.csv(expected, "position_regression_expected.csv", row.names = FALSE, quote = FALSE)
