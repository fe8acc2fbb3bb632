package dashboard

import "github.com/redis/go-redis/v9"

func zz(m string) redis.Z { return redis.Z{Member: m} }
func zx(s string, v map[string]any) *redis.XAddArgs { return &redis.XAddArgs{Stream: s, Values: v} }
