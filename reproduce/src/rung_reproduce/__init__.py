"""The five documents from which rung was made: their kernels, experiments, figures and findings, ours beside theirs."""
