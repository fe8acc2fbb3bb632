package wire

const secret = "s3cr3t-t0k3n"
