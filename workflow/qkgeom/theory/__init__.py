"""The paper's theory of weight updates, computed on real models: docs/theory.md has the statements.

For head h of one layer with input rows x_i, G_h = sum over i, j of beta_ij x_i^T x_j, where beta_ij is the gradient of the
loss at the product x_i W_qk x_j^T, that is at the attention logit (i, j) times its scale. The implicit update of W_qk is -G_h.
"""
