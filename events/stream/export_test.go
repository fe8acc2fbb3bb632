package stream

import "github.com/redis/go-redis/v9"

// Settles reports whether a command runs the settle script.
func Settles(cmd redis.Cmder) bool { return runs(cmd, settleScript, "groups", "settle") }

// Takes reports whether a command runs the take script.
func Takes(cmd redis.Cmder) bool { return runs(cmd, takeScript, "groups", "take") }

// Unparks reports whether a command runs the unpark script.
func Unparks(cmd redis.Cmder) bool { return runs(cmd, unparkScript, "unpark") }

func runs(cmd redis.Cmder, script *redis.Script, names ...string) bool {
	args := cmd.Args()
	return len(args) > 1 && (args[1] == script.Hash() || args[1] == source(names...))
}
