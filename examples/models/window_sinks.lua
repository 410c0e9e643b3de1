-- A window with attention sinks, grouped heads, a soft cap and a learnable sink logit.
-- The window is a run-time parameter: `rota run --set window_left=1024` needs no other kernel.
return rota.attention {
  head_dim = 128,
  heads = 32,
  kv_heads = 8,
  mask = causal & (window(4096, 0) | sinks(4)),
  score = softcap(30),
  sink_logit = true,
}
