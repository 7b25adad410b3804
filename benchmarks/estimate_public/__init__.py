"""Public measurements of training steps, and what the networks behind them do in one step."""
