-- clock.lua precedes every script that needs Redis' clock and exact decimals. Redis' Lua formats a double
-- of this size as 1.79e+15, so use number() for every number in a key or message. A number in a reply is
-- converted to an integer, which is exact.

local function number(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2]) -- µs

-- How long a key keeps its fence after a grant, in ms; after a release at least half of that. Without
-- the key, fences still grow, because they are never less than Redis' clock.
local KEEP = '86400000'
