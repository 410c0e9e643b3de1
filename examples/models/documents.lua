-- Packed documents, each seen causally: the demo's model, with the shape of all-MiniLM-L6-v2.
-- `document` is a tensor: the number of each token's document, given when a shape is planned.
return rota.attention {
  head_dim = 32,
  heads = 12,
  mask = causal & document,
}
