# Reference values for tests/test_mixed.py: heads within layers, with and without known sampling errors.
# Made with R 4.2.2, nlme 3.1-162, lme4 1.1-31, metafor 3.8-1, by: Rscript mixed.R
suppressMessages({library(nlme); library(lme4); library(metafor)})

set.seed(20260602)
n_layers <- 10
heads <- c(6, 6, 5, 6, 3, 6, 6, 4, 6, 6)
layer <- rep(seq_len(n_layers), times = heads)
depth <- (layer - 1) / (n_layers - 1)
sampling_sd <- runif(length(layer), 0.02, 0.12)
loading <- rnorm(length(layer), 0, 0.05)  # sampling error that all heads share, because they share the documents
covariance <- diag(sampling_sd^2) + tcrossprod(loading)
y <- 0.3 + 0.2 * depth + rnorm(n_layers, 0, 0.15)[layer] + rnorm(length(layer), 0, 0.1) +
  rnorm(length(layer), 0, sampling_sd) + loading * rnorm(1)
data <- data.frame(layer, depth, y = round(y, 6), variance = round(sampling_sd^2, 8), loading = round(loading, 6))
write.csv(data, "mixed_data.csv", row.names = FALSE)
data$head <- seq_len(nrow(data))
data$layer <- factor(data$layer)
covariance <- diag(data$variance) + tcrossprod(data$loading)

rows <- list()
add <- function(model, software, estimate, se, layer_variance, head_variance, loglik) {
  values <- c(estimate, se, layer_variance, head_variance, loglik)
  quantity <- c(paste0("estimate", seq_along(estimate) - 1), paste0("se", seq_along(se) - 1),
                "layer_variance", "head_variance", "log_likelihood")
  rows[[length(rows) + 1]] <<- data.frame(model, software, quantity, value = format(values, digits = 15, trim = TRUE))
}
tight <- lmeControl(msTol = 1e-14, tolerance = 1e-12)
for (model in c("mean", "depth")) {
  formula <- if (model == "mean") y ~ 1 else y ~ depth
  fit <- lme(formula, random = ~ 1 | layer, data = data, method = "REML", control = tight)
  add(model, "nlme", fixef(fit), sqrt(diag(vcov(fit))), as.numeric(VarCorr(fit)[1, 1]), fit$sigma^2, logLik(fit))
  with_group <- if (model == "mean") y ~ 1 + (1 | layer) else y ~ depth + (1 | layer)
  fit <- lmer(with_group, data, REML = TRUE, control = lmerControl(optCtrl = list(xtol_abs = 1e-12, ftol_abs = 1e-14)))
  add(model, "lme4", fixef(fit), sqrt(diag(as.matrix(vcov(fit)))), VarCorr(fit)$layer[1], sigma(fit)^2, logLik(fit))
  moderators <- if (model == "mean") ~ 1 else ~ depth
  for (kind in c("variances", "covariance")) {
    v <- if (kind == "variances") data$variance else covariance
    fit <- rma.mv(data$y, V = v, mods = moderators, random = ~ 1 | layer / head, data = data, method = "REML",
                  control = list(optimizer = "optim", optmethod = "BFGS", reltol = 1e-14))
    add(paste(model, kind), "metafor", coef(fit), fit$se, fit$sigma2[1], fit$sigma2[2], logLik(fit))
  }
}
write.csv(do.call(rbind, rows), "mixed_expected.csv", row.names = FALSE, quote = FALSE)
