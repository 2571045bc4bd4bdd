"""What attention is given so that engines may take it whole: plain bands, complete lengths, biases, keys for all."""
