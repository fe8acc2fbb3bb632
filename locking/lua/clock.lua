-- clock.lua opens every script that needs Redis' own clock, and numbers as exact decimals. Redis' Lua
-- writes a double of this size as 1.79e+15, so a number never meets a key or a message without
-- number(). A number in a reply is an integer, and exact.

local function number(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2]) -- µs

-- A key keeps its fence this long after a grant, in ms, and at least half of that after a release.
-- Once it is gone the fence still grows, for it is never less than Redis' clock.
local KEEP = '86400000'
