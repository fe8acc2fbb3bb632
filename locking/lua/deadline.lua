-- deadline.lua precedes acquire.lua. After a hang, Redis runs calls whose callers have given up. Such a call must not take
-- a lease, so it changes nothing.
--
-- ARGV 13  time of Redis' clock, µs, after which the call is late; '0' for none
--
-- Returns {'late', now} if the call is late.

if ARGV[13] ~= '0' and now > tonumber(ARGV[13]) then return {'late', now} end
