"""What attention is given so that engines may take it whole: complete lengths, biases for masks, keys for all."""
