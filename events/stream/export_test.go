package stream

import "github.com/redis/go-redis/v9"

// Settles reports whether a command runs the settle script.
func Settles(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) > 1 && (args[1] == settleScript.Hash() || args[1] == source("groups", "settle"))
}
